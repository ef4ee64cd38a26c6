"""Batches of what is due: each target in order, never more than it remembers, the same when built again."""

from __future__ import annotations

from millrace.queues.delayed.planning import BATCHES_MAX, Found, delivery_batch, plan
from millrace.wire.records import check_batch, read_records
from tests.unit.queues.delayed.messages import record, stored


def found(offset: int, due_ms: int, *, partition: int = 0, value: bytes = b"v") -> Found:
    return Found((due_ms, offset), stored(record(offset, due_ms, partition=partition, value=value)))


def test_each_target_gets_its_messages_by_due_time() -> None:
    planned, left = plan(
        [found(5, 3_000), found(6, 2_000), found(7, 2_500, partition=1)], producer_id=9, producer_epoch=4
    )
    assert left == []
    assert [(each.intent.target.partition, each.intent.entries) for each in planned] == [
        (0, ((2_000, 6), (3_000, 5))),
        (1, ((2_500, 7),)),
    ]
    header = check_batch(planned[0].batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 4, 0)
    records = read_records(planned[0].batch)
    assert [(each.timestamp, each.key, each.value) for each in records] == [
        (2_000, b"k6", b"v"),
        (3_000, b"k5", b"v"),
    ]
    assert records[0].headers[-1] == ("millrace-scheduled-at", b"1000")


def test_sequences_go_on_from_batch_to_batch_and_what_is_too_much_waits() -> None:
    messages = [found(number, 1_000 + number) for number in range(2 * BATCHES_MAX + 1)]
    planned, left = plan(messages, producer_id=9, producer_epoch=4, records_max=2)
    assert [each.intent.base_sequence for each in planned] == [0, 2, 4, 6]
    assert left == [messages[-1].entry]


def test_large_messages_get_batches_of_their_own() -> None:
    planned, _ = plan(
        [found(number, 1_000, value=bytes(200_000)) for number in range(3)], producer_id=9, producer_epoch=4
    )
    assert [len(each.intent.entries) for each in planned] == [1, 1, 1]


def test_a_batch_is_the_same_when_it_is_built_again() -> None:
    messages = [found(5, 3_000), found(6, 2_000)]
    (planned,), _ = plan(messages, producer_id=9, producer_epoch=4)
    by_offset = {each.entry[1]: each.stored for each in messages}
    assert delivery_batch(planned.intent, [by_offset[offset] for _, offset in planned.intent.entries]) == (
        planned.batch
    )
