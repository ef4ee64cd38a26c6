"""The APIs of groups of all kinds. Each handler translates a request into a command and its outcome into a
response."""

from __future__ import annotations

from typing import Final

from millrace.broker.handlers.groups.admin import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS
from millrace.broker.handlers.groups.consumers import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
)
from millrace.broker.handlers.groups.coordinator import FIND_COORDINATOR
from millrace.broker.handlers.groups.membership import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from millrace.broker.handlers.groups.offsets import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from millrace.broker.handlers.groups.share_groups import SHARE_GROUP_DESCRIBE, SHARE_GROUP_HEARTBEAT
from millrace.broker.handlers.groups.share_offsets import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from millrace.broker.handlers.groups.streams import STREAMS_GROUP_HEARTBEAT
from millrace.broker.handlers.groups.streams_describe import STREAMS_GROUP_DESCRIBE

__all__: Final = ["GROUP_APIS"]

GROUP_APIS: Final = (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    DELETE_GROUPS,
    OFFSET_DELETE,
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SHARE_GROUP_DESCRIBE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    STREAMS_GROUP_HEARTBEAT,
    STREAMS_GROUP_DESCRIBE,
)
