"""What ShareFetch and ShareAcknowledge have in common."""

from __future__ import annotations

import pytest

from millrace.broker.handlers.queues.share_requests import are_valid, by_topic
from millrace.core.ids import TopicId
from millrace.wire.share_codec import AckBatch, PartitionResult


@pytest.mark.parametrize(
    "acks, is_valid",
    [
        ([], True),
        ([(0, 0, b"\1")], True),
        ([(0, 9, b"\1"), (10, 12, b"\0\1\2")], True),
        ([(0, 9, b"\3")], True),
        ([(0, 9, b"\5")], False),
        ([(0, 1, b"\1\xff")], False),
        ([(5, 4, b"\1")], False),
        ([(-2, 4, b"\1")], False),
        ([(0, 4, b"")], False),
        ([(0, 4, b"\1" * 4)], False),
        ([(0, 4, b"\1" * 6)], False),
        ([(5, 6, b"\1"), (4, 4, b"\1")], False),
    ],
)
def test_acknowledgements_must_make_sense(acks: list[tuple[int, int, bytes]], is_valid: bool) -> None:
    batches = [AckBatch(*each) for each in acks]
    assert are_valid(batches, type_max=4, is_renewal=False) is is_valid


@pytest.mark.parametrize("types", [b"\4", b"\1\4"])
def test_renewals_are_for_requests_that_renew(types: bytes) -> None:
    batches = [AckBatch(0, len(types) - 1, types)]
    assert are_valid(batches, type_max=4, is_renewal=True)
    assert not are_valid(batches, type_max=4, is_renewal=False)
    assert not are_valid(batches, type_max=3, is_renewal=True)


def test_results_of_a_topic_stand_together() -> None:
    first, second = TopicId(bytes(16)), TopicId(b"x" * 16)
    results = [(first, PartitionResult(0)), (second, PartitionResult(1)), (first, PartitionResult(2))]
    assert by_topic(results) == [
        (first, [PartitionResult(0), PartitionResult(2)]),
        (second, [PartitionResult(1)]),
    ]
