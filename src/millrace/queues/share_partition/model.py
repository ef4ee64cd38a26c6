"""The words in which the rules of a share partition speak with their shell: states, ranges, what is stored.

All offsets are inclusive at both ends, as in Kafka's messages.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class RecordState(IntEnum):
    """What has become of a record, with Kafka's numbers. Kafka stores 0, 2, 3 and 4; an acquired record is
    stored as nothing at all, so that a new leader offers it again."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Its dead letter is not committed yet."""
    ARCHIVED = 4
    TX_PENDING = 5
    """Acknowledged in a transaction that is still open. Reserved: nothing here makes it, and a share
    partition that has it stored is not served: offering its records again would break the transaction."""


def state_of(number: int) -> RecordState:
    """The state with this number. One that a later version brings is not final for this one: its records are
    offered again."""
    return _STATES.get(number, RecordState.AVAILABLE)


_STATES: Final = {int(state): state for state in RecordState}


class AcknowledgeType(IntEnum):
    """What a client says of a record that it was given, with Kafka's numbers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """Whether the greatest number of records is soft or exact, with Kafka's numbers."""

    BATCH_OPTIMIZED = 0
    """Whole batches; the greatest number of records is soft."""
    RECORD_LIMIT = 1


class StateBatch(NamedTuple):
    """A run of records as it is stored in `__share_group_state`."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    not_before_ms: int = 0
    """When it may be delivered again; 0 for at once. Kafka has no such field: it is stored under a tag."""


class StoredState(NamedTuple):
    """All that is stored of a share partition, as a new leader reads it."""

    state_epoch: int
    start_offset: int
    """-1 while nobody has decided where the group begins."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class Delta(NamedTuple):
    """What one or several decisions change of the stored state; written as one record."""

    start_offset: int
    """-1 if it stays."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class ShareKey(NamedTuple):
    """One share partition: a group's view of one partition."""

    group_id: str
    topic_id: bytes
    partition: int
