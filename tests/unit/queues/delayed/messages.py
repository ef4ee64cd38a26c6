"""Delayed messages for tests."""

from __future__ import annotations

from millrace.core.ids import TopicId
from millrace.queues.delayed.codec import StoredMessage, decode, encode_added
from millrace.queues.delayed.model import DelayedRecord

TOPIC_ID = TopicId(b"t" * 16)


def record(
    offset: int,
    due_ms: int = 2_000,
    *,
    partition: int = 0,
    value: bytes | None = b"v",
    replaces: int = -1,
    is_repeated: bool = False,
) -> DelayedRecord:
    return DelayedRecord(
        "reminders",
        TOPIC_ID,
        partition,
        offset,
        due_ms,
        1_000,
        b"k%d" % offset,
        value,
        (("colour", b"red"), ("empty", None)),
        replaces=replaces,
        is_repeated=is_repeated,
    )


def cancellation(offset: int, *, partition: int = 0) -> DelayedRecord:
    """A record that cancels the one with this offset."""
    return record(offset + 1000, partition=partition)._replace(replaces=offset, is_cancellation=True)


def stored(delayed: DelayedRecord) -> StoredMessage:
    found = decode(*encode_added(delayed))
    assert isinstance(found, StoredMessage)
    return found
