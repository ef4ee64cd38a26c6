"""Why a batch is refused: the slow half of the checks says which rule it breaks."""

from __future__ import annotations

import struct

import pytest

from millrace.log.batches.checks import (
    check_sent,
    check_sequence,
    check_timestamps,
    refusal,
    split_batches,
)
from millrace.log.config import LogConfig
from millrace.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    ProducerFenced,
    TransactionOpen,
    UnsupportedBatchFormat,
    UnverifiedTransaction,
)
from millrace.log.state.producer_state import ProducerStates
from millrace.wire.batch_header import HEADER
from tests.unit.log.support import NOW_MS, batch_of


def header_of(batch: memoryview) -> tuple[int, ...]:
    return HEADER.unpack_from(batch)


@pytest.mark.parametrize(
    "at, layout, value, expected",
    [
        (16, ">b", 7, CorruptBatch),
        (16, ">b", 1, UnsupportedBatchFormat),
        (8, ">i", 10, CorruptBatch),
        (8, ">i", 10_000, InvalidRecord),
        (8, ">i", 50, InvalidRecord),
        (21, ">h", 0x20, InvalidRecord),
        (21, ">h", 0x10, UnverifiedTransaction),
        (21, ">h", 0x05, InvalidRecord),
        (0, ">q", 3, InvalidRecord),
        (57, ">i", 5, InvalidRecord),
    ],
)
def test_a_refusal_names_the_rule(at: int, layout: str, value: int, expected: type[Exception]) -> None:
    batch = batch_of(b"one", b"two")
    struct.pack_into(layout, batch, at, value)
    assert type(refusal(batch, LogConfig())) is expected


def test_a_batch_may_be_too_large_for_its_topic() -> None:
    batch = batch_of(bytes(100))
    assert type(refusal(batch, LogConfig(max_message_bytes=len(batch) - 1))) is BatchTooLarge


@pytest.mark.parametrize("distance_ms", [-101, 51])
def test_timestamps_have_limits_on_both_sides(distance_ms: int) -> None:
    config = LogConfig(timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    for near in (-100, 50):
        check_timestamps(0, NOW_MS, NOW_MS + near, NOW_MS, config)
    with pytest.raises(InvalidTimestamp):
        check_timestamps(0, NOW_MS, NOW_MS + distance_ms, NOW_MS, config)
    # No timestamp at all is no old one.
    check_timestamps(0, -1, -1, NOW_MS, config)


def test_a_sequence_is_new_repeated_or_wrong() -> None:
    producers = ProducerStates()
    first = header_of(batch_of(b"a", b"b", producer_id=3, epoch=1, sequence=0))
    assert check_sequence(producers, first) is None
    producers.record(first, last_offset=11, timestamp=NOW_MS, now_ms=NOW_MS)
    repeated = check_sequence(producers, first)
    assert repeated is not None
    assert (repeated.base_offset, repeated.last_offset) == (10, 11)
    assert check_sequence(producers, header_of(batch_of(b"c", producer_id=3, epoch=1, sequence=2))) is None
    with pytest.raises(OutOfOrderSequence):
        check_sequence(producers, header_of(batch_of(b"d", producer_id=3, epoch=1, sequence=3)))
    with pytest.raises(ProducerFenced):
        check_sequence(producers, header_of(batch_of(b"c", producer_id=3, epoch=0, sequence=2)))


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    producers = ProducerStates()
    inside = header_of(batch_of(b"a", producer_id=3, sequence=0, transactional=True))
    producers.record(inside, last_offset=0, timestamp=NOW_MS, now_ms=NOW_MS)
    with pytest.raises(TransactionOpen):
        check_sequence(producers, header_of(batch_of(b"b", producer_id=3, sequence=1)))
    following = header_of(batch_of(b"b", producer_id=3, sequence=1, transactional=True))
    assert check_sequence(producers, following) is None


def test_records_are_split_where_batches_begin() -> None:
    one, two = batch_of(b"a", b"b", base_offset=5), batch_of(b"c", base_offset=9)
    records = memoryview(bytearray(bytes(one) + bytes(two)))
    found = [(start, end, header[0]) for start, end, header in split_batches(records, at_least=5)]
    assert found == [(0, len(one), 5), (len(one), len(records), 9)]
    with pytest.raises(InvalidRecord):
        split_batches(records, at_least=6)
    with pytest.raises(CorruptBatch):
        split_batches(records[:-1], at_least=5)
    records[-1] ^= 1
    with pytest.raises(CorruptBatch):
        split_batches(records, at_least=5)


def test_a_batch_is_judged_as_it_was_sent_before_records_are_taken_out() -> None:
    config = LogConfig(max_message_bytes=1_000)
    check_sent(batch_of(b"a", b"b", producer_id=3), NOW_MS, config)
    control, gap = batch_of(b"a"), batch_of(b"a")
    control[22] |= 0x20
    gap[26] = 5
    for wrong, error in (
        (batch_of(b"x" * 2_000), BatchTooLarge),
        (batch_of(b"a", producer_id=3, transactional=True), UnverifiedTransaction),
        (batch_of(b"a", timestamp=NOW_MS + 2 * 3_600_000), InvalidTimestamp),
        (batch_of(b"a", base_offset=4), InvalidRecord),
        (control, InvalidRecord),
        (gap, InvalidRecord),
    ):
        with pytest.raises(error):
            check_sent(wrong, NOW_MS, config)
    late = batch_of(b"a", timestamp=NOW_MS + 2 * 3_600_000)
    check_sent(late, NOW_MS, LogConfig(timestamp_log_append=True))
