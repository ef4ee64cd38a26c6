"""What a delayed record is by default."""

from __future__ import annotations

from millrace.core.ids import TopicId
from millrace.queues.delayed.model import DelayedRecord


def test_a_record_takes_nobodys_place_unless_it_says_so() -> None:
    record = DelayedRecord("reminders", TopicId(bytes(16)), 0, 7, 2_000, 1_000, b"k", b"v", ())
    assert record.replaces == -1
    assert not record.is_cancellation
