"""Which names a topic may have."""

from __future__ import annotations

import re
from typing import Final

from millrace.core.limits import TOPIC_NAME_LENGTH_MAX
from millrace.metadata.errors import InvalidTopicName

AUDIT_TOPIC: Final = "__audit"
"""Where brokers tell who did what."""
DELAYED_TOPIC: Final = "__delayed_messages"
"""Where messages wait until they are due. Brokers write to it for each other."""
INTERNAL_TOPICS: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    AUDIT_TOPIC,
    DELAYED_TOPIC,
)
"""Topics of the coordinators, of the audit and of messages to come: clients may read them, and neither write
nor cut them."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicName, saying why, for a name that no topic may have."""
    if name == "":
        raise InvalidTopicName(name, "it is empty")
    if name in (".", ".."):
        raise InvalidTopicName(name, "it means a directory")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopicName(name, f"it has {len(name)} characters, the limit is {TOPIC_NAME_LENGTH_MAX}")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(name, "only ASCII letters, digits, '.', '_' and '-' are allowed")


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS
