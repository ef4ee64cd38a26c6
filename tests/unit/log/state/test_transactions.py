"""What a log learns of transactions from its batches, and which markers it still has to write."""

from __future__ import annotations

import pytest

from millrace.log.errors import CoordinatorFenced, ProducerFenced
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.producer_state import ProducerStates
from millrace.log.state.transactions import (
    EPOCH_PER_TRANSACTION,
    EndMarker,
    Marker,
    apply_batch,
    check_marker,
    read_marker,
)
from millrace.wire.batch_header import HEADER
from millrace.wire.records import ControlMarker, ControlType, Record, build_batch, build_marker
from tests.unit.log.support import NOW_MS, batch_of

PRODUCER = 7


def apply(states: ProducerStates, batch: bytes | memoryview) -> AbortedTransaction | None:
    return apply_batch(states, HEADER.unpack_from(batch), batch, NOW_MS)


def data(offset: int, producer_id: int = PRODUCER, *, epoch: int = 0, sequence: int = 0) -> memoryview:
    return batch_of(
        b"a",
        b"b",
        base_offset=offset,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
        transactional=True,
    )


def end(
    offset: int, kind: int, producer_id: int = PRODUCER, *, epoch: int = 0, coordinator_epoch: int = 0
) -> bytes:
    return build_marker(
        ControlMarker(kind, coordinator_epoch),
        offset=offset,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


@pytest.fixture
def states() -> ProducerStates:
    """One producer with an open transaction from offset 10 on."""
    states = ProducerStates()
    apply(states, data(10))
    return states


def test_a_transaction_is_open_from_its_first_batch_to_its_marker(states: ProducerStates) -> None:
    apply(states, data(12, sequence=2))
    assert (states.open_since(PRODUCER), states.first_unstable_offset) == (10, 10)
    assert apply(states, end(14, ControlType.COMMIT)) is None
    assert (states.open_since(PRODUCER), states.first_unstable_offset) == (-1, -1)


def test_an_abort_tells_what_readers_have_to_skip(states: ProducerStates) -> None:
    assert apply(states, end(12, ControlType.ABORT)) == AbortedTransaction(PRODUCER, 10, 12, 13)


def test_the_last_stable_offset_of_an_abort_stays_before_a_transaction_that_is_still_open(
    states: ProducerStates,
) -> None:
    apply(states, data(12, 8))
    assert apply(states, end(14, ControlType.ABORT)) == AbortedTransaction(PRODUCER, 10, 14, 12)
    assert states.first_unstable_offset == 12


def test_an_abort_without_a_transaction_hides_nothing() -> None:
    states = ProducerStates()
    assert apply(states, end(5, ControlType.ABORT)) is None
    assert states.entries[PRODUCER].coordinator_epoch == 0


def test_batches_without_a_producer_and_control_batches_of_another_kind_change_nothing() -> None:
    states = ProducerStates()
    other = build_batch([Record(1, NOW_MS, b"\x00\x00\x00\x02", b"snapshot")], producer_id=5, control=True)
    assert apply(states, batch_of(b"plain")) is None
    assert apply(states, other) is None
    assert not states.entries


@pytest.mark.parametrize("kind, is_commit", [(ControlType.COMMIT, True), (ControlType.ABORT, False)])
def test_a_marker_is_read_as_it_was_written(kind: int, is_commit: bool) -> None:
    assert read_marker(end(3, kind, coordinator_epoch=300)) == Marker(is_commit, 300)


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\x00\x00\x00\x05"])
def test_a_control_record_with_another_key_is_no_marker(key: bytes | None) -> None:
    assert read_marker(build_batch([Record(0, NOW_MS, key, bytes(6))], control=True)) is None


def test_a_marker_that_is_cut_off_is_none_at_any_length() -> None:
    whole = end(3, ControlType.COMMIT)
    # The last byte is the count of headers, which a marker is read without.
    assert all(read_marker(whole[:size]) is None for size in range(len(whole) - 1))
    assert read_marker(whole[:61] + b"\xff" * 20) is None


def test_a_marker_for_a_producer_that_nobody_knows_has_to_be_written() -> None:
    assert check_marker(ProducerStates(), EndMarker(PRODUCER, 0, True, 0))


def test_a_replaced_coordinator_and_an_older_epoch_of_the_producer_are_refused(
    states: ProducerStates,
) -> None:
    apply(states, data(12, epoch=3))
    apply(states, end(14, ControlType.COMMIT, epoch=3, coordinator_epoch=5))
    with pytest.raises(CoordinatorFenced):
        check_marker(states, EndMarker(PRODUCER, 3, True, 4))
    with pytest.raises(ProducerFenced):
        check_marker(states, EndMarker(PRODUCER, 2, True, 5))
    assert check_marker(states, EndMarker(PRODUCER, 3, True, 5))


def test_with_an_epoch_per_transaction_a_marker_that_is_there_is_not_written_again(
    states: ProducerStates,
) -> None:
    marker = EndMarker(PRODUCER, 1, True, 0, EPOCH_PER_TRANSACTION)
    assert check_marker(states, marker)
    apply(states, end(12, ControlType.COMMIT, epoch=1))
    assert not check_marker(states, marker)


def test_with_an_epoch_per_transaction_a_late_marker_does_not_end_the_next_transaction(
    states: ProducerStates,
) -> None:
    marker = EndMarker(PRODUCER, 1, True, 0, EPOCH_PER_TRANSACTION)
    apply(states, end(12, ControlType.COMMIT, epoch=1))
    apply(states, data(13, epoch=1))
    with pytest.raises(ProducerFenced):
        check_marker(states, marker)
    # Before that version nobody can tell the two apart.
    assert check_marker(states, marker._replace(transaction_version=1))
