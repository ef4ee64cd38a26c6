"""The APIs of consumer groups. Each handler translates a request into a command and its outcome into a
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
)
