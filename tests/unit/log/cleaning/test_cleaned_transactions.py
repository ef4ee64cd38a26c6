"""Which batches of a compacted log are aborted, and when the marker of their transaction may go."""

from __future__ import annotations

from millrace.log.cleaning.cleaned_transactions import CleanedTransactions
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.wire.batch_header import read_header
from millrace.wire.records import ControlMarker, ControlType, Record, build_batch, build_marker
from tests.unit.log.support import NOW_MS, batch_of

ABORTED = AbortedTransaction(7, 10, 20, 21)


def is_aborted(
    transactions: CleanedTransactions, offset: int, producer_id: int = 7, *, transactional: bool = True
) -> bool:
    batch = batch_of(b"v", base_offset=offset, producer_id=producer_id, transactional=transactional)
    return transactions.is_aborted(read_header(batch))


def is_removable(transactions: CleanedTransactions, offset: int, kind: int, producer_id: int = 7) -> bool:
    batch = build_marker(
        ControlMarker(kind, 0), offset=offset, timestamp=NOW_MS, producer_id=producer_id, producer_epoch=0
    )
    return transactions.is_marker_removable(memoryview(batch), read_header(batch))


def test_only_the_transactional_batches_of_its_producer_belong_to_an_aborted_transaction() -> None:
    transactions = CleanedTransactions([ABORTED], from_offset=0)
    assert not is_aborted(transactions, 9)
    assert is_aborted(transactions, 10)
    assert not is_aborted(transactions, 11, 8)
    assert not is_aborted(transactions, 12, transactional=False)
    assert is_aborted(transactions, 13)


def test_an_abort_marker_stays_and_is_indexed_while_there_was_a_batch_of_its_transaction() -> None:
    transactions = CleanedTransactions([ABORTED], from_offset=0)
    assert is_aborted(transactions, 10)
    assert not is_removable(transactions, 20, ControlType.ABORT)
    assert transactions.retained == [ABORTED]


def test_an_abort_marker_of_which_nothing_is_left_may_go_and_is_not_indexed() -> None:
    transactions = CleanedTransactions([ABORTED], from_offset=0)
    assert is_removable(transactions, 20, ControlType.ABORT)
    assert transactions.retained == []


def test_a_commit_marker_outlives_the_batches_of_its_own_transaction_only() -> None:
    transactions = CleanedTransactions([], from_offset=0)
    assert not is_aborted(transactions, 5)
    assert not is_removable(transactions, 6, ControlType.COMMIT)
    assert is_removable(transactions, 7, ControlType.COMMIT)
    assert is_removable(transactions, 8, ControlType.COMMIT, 8)


def test_what_follows_the_marker_is_the_next_transaction() -> None:
    transactions = CleanedTransactions([ABORTED], from_offset=0)
    assert is_aborted(transactions, 10)
    is_removable(transactions, 20, ControlType.ABORT)
    assert not is_aborted(transactions, 21)
    assert not is_removable(transactions, 22, ControlType.COMMIT)


def test_without_its_marker_an_aborted_transaction_ends_with_its_last_offset() -> None:
    transactions = CleanedTransactions([ABORTED], from_offset=0)
    assert is_aborted(transactions, 10)
    assert not is_aborted(transactions, 21)


def test_transactions_that_ended_before_the_first_offset_do_not_count_and_repeated_entries_count_once() -> (
    None
):
    transactions = CleanedTransactions(
        [ABORTED, AbortedTransaction(7, 30, 32, 33), AbortedTransaction(7, 30, 32, 33)], from_offset=21
    )
    assert not is_aborted(transactions, 12)
    assert is_aborted(transactions, 30)
    assert not is_removable(transactions, 32, ControlType.ABORT)
    assert not is_aborted(transactions, 33)
    assert len(transactions.retained) == 1


def test_a_control_batch_that_is_no_marker_stays_and_an_empty_one_may_go() -> None:
    transactions = CleanedTransactions([], from_offset=0)
    for key, is_free in ((b"\x00\x00\x00\x02", False), (b"\x00", False)):
        batch = build_batch([Record(5, NOW_MS, key, b"")], producer_id=7, control=True)
        assert transactions.is_marker_removable(memoryview(batch), read_header(batch)) is is_free
    empty = build_batch([], base_offset=6, producer_id=7, control=True)
    assert transactions.is_marker_removable(memoryview(empty), read_header(empty))
