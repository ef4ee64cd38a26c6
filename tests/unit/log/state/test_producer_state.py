"""What a log remembers of its producers, and what of that survives in a snapshot."""

from __future__ import annotations

from millrace.log.state.producer_state import (
    BATCHES_REMEMBERED,
    SEQUENCE_MAX,
    ProducerStates,
    add_to_sequence,
    decode_snapshot,
    encode_snapshot,
    next_sequence,
    subtract_from_sequence,
)
from millrace.wire.batch_header import HEADER
from tests.unit.log.support import NOW_MS, batch_of


def wrote(
    states: ProducerStates, last_offset: int, *, sequence: int, epoch: int = 0, transactional: bool = False
) -> None:
    batch = batch_of(b"a", b"b", producer_id=3, epoch=epoch, sequence=sequence, transactional=transactional)
    states.record(HEADER.unpack_from(batch), last_offset, NOW_MS, NOW_MS)


def test_the_last_batches_are_remembered_and_the_others_forgotten() -> None:
    states = ProducerStates()
    for number in range(BATCHES_REMEMBERED + 2):
        wrote(states, 2 * number + 1, sequence=2 * number)
    entry = states.entries[3]
    assert [last_offset for _, last_offset, _, _ in entry.batches] == [5, 7, 9, 11, 13]
    assert (entry.last_sequence, entry.last_offset) == (13, 13)
    original = states.check(3, epoch=0, first_sequence=4, last_sequence=5)
    assert original is not None
    assert (original.base_offset, original.last_offset) == (4, 5)


def test_a_new_epoch_begins_without_the_batches_of_the_old_one() -> None:
    states = ProducerStates()
    wrote(states, 1, sequence=0)
    wrote(states, 3, sequence=0, epoch=1)
    assert [last_offset for _, last_offset, _, _ in states.entries[3].batches] == [3]
    assert states.entries[3].epoch == 1


def test_sequences_wrap_around_and_no_sequence_stays_none() -> None:
    assert add_to_sequence(SEQUENCE_MAX, 1) == next_sequence(SEQUENCE_MAX) == 0
    assert add_to_sequence(SEQUENCE_MAX - 1, 3) == 1
    assert subtract_from_sequence(1, 3) == SEQUENCE_MAX - 1
    assert add_to_sequence(-1, 5) == subtract_from_sequence(-1, 5) == -1


def test_the_oldest_open_transaction_is_where_the_stable_part_ends() -> None:
    states = ProducerStates()
    wrote(states, 5, sequence=0, transactional=True)
    assert (states.first_unstable_offset, states.stable_before(100)) == (4, 4)
    first_offset = states.record_marker(3, epoch=0, coordinator_epoch=0, timestamp=NOW_MS, now_ms=NOW_MS)
    states.transaction_ended(first_offset, 6, high_watermark=5)
    assert first_offset == 4
    assert states.stable_before(6) == 4, "its marker is not committed"
    assert states.stable_before(7) == 7


def test_a_snapshot_brings_back_the_last_batch_and_a_damaged_one_nothing() -> None:
    states = ProducerStates()
    wrote(states, 1, sequence=0)
    wrote(states, 3, sequence=2, transactional=True)
    data = encode_snapshot(states)
    again = decode_snapshot(data, now_ms=NOW_MS)
    assert again is not None
    entry = again.entries[3]
    assert (entry.last_sequence, entry.last_offset, entry.current_txn_first_offset) == (3, 3, 2)
    assert again.first_unstable_offset == 2
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert decode_snapshot(bytes(damaged), now_ms=NOW_MS) is None, position
    assert decode_snapshot(data[:-1], now_ms=NOW_MS) is None


def test_a_batch_that_could_not_be_stored_is_waited_for_by_unknown_producers_only() -> None:
    states = ProducerStates()
    states.expect(3, epoch=0, sequence=7, now_ms=NOW_MS)
    assert states.entries[3].last_sequence == 6
    states.expect(3, epoch=0, sequence=20, now_ms=NOW_MS)
    assert states.entries[3].last_sequence == 6
