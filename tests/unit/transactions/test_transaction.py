"""One transactional id: what it becomes with each step, and what a restart reads back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.core.ids import TopicPartition
from millrace.transactions.commands import Identity
from millrace.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    NO_PRODUCER_ID,
    State,
    Transaction,
    from_value,
    to_value,
)

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 3)
EMPTY = Transaction(transactional_id="t", producer_id=7, epoch=3, timeout_ms=100, partitions={})
OPEN = EMPTY.with_partitions([ORDERS, BILLS], 2, 10)


def prepared(
    transaction: Transaction, version: int = 2, next_producer_id: int = NO_PRODUCER_ID
) -> Transaction:
    return transaction.prepared(
        is_commit=True, transaction_version=version, next_producer_id=next_producer_id, now_ms=20
    )


def test_the_first_partitions_begin_a_transaction_and_others_join_it() -> None:
    assert (OPEN.state, OPEN.started_ms, list(OPEN.partitions)) == (State.Ongoing, 10, [ORDERS, BILLS])
    more = OPEN.with_partitions([ORDERS, TopicPartition("orders", 1)], 2, 15)
    assert (more.started_ms, more.updated_ms) == (10, 15), "the time-out runs from the beginning"
    assert list(more.partitions) == [ORDERS, BILLS, TopicPartition("orders", 1)]
    assert list(OPEN.partitions) == [ORDERS, BILLS], "it is replaced, not changed"
    again = prepared(OPEN).completed(30).with_partitions([BILLS], 2, 40)
    assert (again.started_ms, list(again.partitions)) == (40, [BILLS])


@pytest.mark.parametrize("version, epoch", [(0, 3), (1, 3), (2, 4)])
def test_from_version_2_on_every_transaction_has_its_own_epoch(version: int, epoch: int) -> None:
    ended = prepared(OPEN, version)
    assert (ended.state, ended.epoch, ended.is_prepared) == (State.PrepareCommit, epoch, True)
    done = ended.completed(30)
    assert (done.state, done.identity, done.partitions) == (State.CompleteCommit, Identity(7, epoch), {})


def test_an_end_that_is_repeated_is_known_by_the_epoch_before() -> None:
    done = prepared(OPEN).completed(30)
    assert done.is_repeated_end(Identity(7, 3))
    assert not done.is_repeated_end(Identity(7, 4)), "that is the next transaction"
    assert not done.is_repeated_end(Identity(8, 3))
    assert not prepared(OPEN, 1).is_repeated_end(Identity(7, 2)), "older versions cannot be told apart"


def test_what_the_coordinator_ends_is_never_taken_for_the_producers_own_end() -> None:
    fenced = OPEN.fenced(20)
    assert (fenced.state, fenced.epoch) == (State.PrepareAbort, 5)
    assert not fenced.is_repeated_end(Identity(7, 3))
    last = replace(OPEN, epoch=CLIENT_EPOCH_MAX).fenced(20)
    assert last.epoch == EPOCH_MAX
    assert not last.is_repeated_end(Identity(7, CLIENT_EPOCH_MAX))
    assert replace(OPEN, transaction_version=1).fenced(20).epoch == 4


def test_used_up_epochs_go_on_with_the_next_producer_id_once_the_markers_are_written() -> None:
    ended = prepared(replace(OPEN, epoch=CLIENT_EPOCH_MAX), next_producer_id=8)
    assert replace(OPEN, epoch=CLIENT_EPOCH_MAX).is_exhausted
    assert ended.identity == Identity(7, EPOCH_MAX), "the markers are still those of the old one"
    assert ended.producer_identity == Identity(8, 0), "and the producer already has the new one"
    assert ended.is_repeated_end(Identity(7, CLIENT_EPOCH_MAX))
    done = ended.completed(30)
    assert (done.identity, done.previous_producer_id, done.next_producer_id) == (
        Identity(8, 0),
        7,
        NO_PRODUCER_ID,
    )
    assert done.is_repeated_end(Identity(7, CLIENT_EPOCH_MAX))


def test_a_producer_that_takes_over_begins_with_nothing() -> None:
    same = prepared(OPEN).completed(30).initialized(Identity(7, 5), 200, 40)
    assert (same.state, same.identity, same.timeout_ms, same.started_ms) == (
        State.Empty,
        Identity(7, 5),
        200,
        -1,
    )
    assert same.previous_producer_id == NO_PRODUCER_ID
    assert same.initialized(Identity(9, 0), 200, 50).previous_producer_id == 7


@pytest.mark.parametrize(
    "transaction",
    [
        EMPTY,
        OPEN,
        prepared(OPEN),
        prepared(OPEN).completed(30),
        OPEN.fenced(20),
        prepared(replace(OPEN, epoch=CLIENT_EPOCH_MAX), next_producer_id=8),
    ],
)
def test_what_is_stored_gives_it_back(transaction: Transaction) -> None:
    again = from_value("t", to_value(transaction))
    # Partitions of one topic are stored together.
    assert again == transaction
