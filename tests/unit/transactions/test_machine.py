"""The rules of transactions: each fault that real systems had (KIP-890, KIP-360) is a test here."""

from __future__ import annotations

import pytest

from millrace.core.ids import TopicPartition
from millrace.transactions.commands import DONE, Identity, TransactionSettings, TransactionTimedOut
from millrace.transactions.errors import (
    EpochFenced,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    PartitionNotInTransaction,
    TransactionEnding,
    WrongProducerId,
)
from millrace.transactions.transaction import CLIENT_EPOCH_MAX, EPOCH_MAX, State
from tests.unit.transactions.lab import BILLS, NAME, ORDERS, Lab


def test_a_transaction_with_its_own_epoch_goes_from_begin_to_commit() -> None:
    lab = Lab()
    producer = lab.started()
    assert lab.add(producer, ORDERS, BILLS) is DONE
    assert lab.is_in(State.Ongoing)
    following = lab.end(producer, is_commit=True)
    assert following == Identity(producer.producer_id, producer.epoch + 1)
    (effect,) = lab.effects
    assert effect.is_commit
    assert effect.producer == following, "markers carry the raised epoch, which fences late records"
    assert effect.partitions == (ORDERS, BILLS)
    lab.write_markers()
    assert lab.is_in(State.CompleteCommit)
    assert not lab.transaction.partitions


def test_older_producers_keep_their_epoch() -> None:
    lab = Lab()
    producer = lab.started()
    lab.add(producer, version=0)
    assert lab.end(producer, is_commit=False, version=0) == producer
    assert lab.effects[0].producer == producer
    lab.write_markers()
    assert lab.is_in(State.CompleteAbort)
    assert lab.end(producer, is_commit=False, version=0) == producer, "asked again after a lost answer"
    assert isinstance(lab.end(producer, is_commit=True, version=0), InvalidTransactionState)


def test_a_new_producer_fences_the_old_one_and_aborts_what_it_had_open() -> None:
    lab = Lab()
    zombie = lab.started()
    lab.add(zombie)
    assert isinstance(lab.init(), TransactionEnding)
    assert not lab.effects[0].is_commit
    assert isinstance(lab.end(zombie, is_commit=True), EpochFenced)
    lab.write_markers()
    assert isinstance(lab.end(zombie, is_commit=False), EpochFenced), "not taken for a repeated abort"
    successor = lab.started()
    assert successor.epoch > zombie.epoch
    for outcome in (lab.add(zombie), lab.verify(zombie), lab.end(zombie, is_commit=False)):
        assert isinstance(outcome, EpochFenced)
    assert lab.add(successor) is DONE


def test_the_zombie_of_a_finished_transaction_cannot_abort_its_successor() -> None:
    lab = Lab()
    zombie = lab.started()
    lab.add(zombie)
    following = lab.end(zombie, is_commit=True)
    lab.write_markers()
    assert isinstance(following, Identity)
    successor = lab.started()
    assert isinstance(lab.end(following, is_commit=False), EpochFenced)
    assert lab.add(successor) is DONE
    assert isinstance(lab.end(following, is_commit=False), EpochFenced)
    assert lab.is_in(State.Ongoing)


def test_a_late_record_finds_no_transaction_after_an_abort() -> None:
    """F15: it would open one that nobody ever ends."""
    lab = Lab()
    producer = lab.started()
    lab.add(producer, version=0)
    lab.end(producer, is_commit=False, version=0)
    assert isinstance(lab.verify(producer), TransactionEnding)
    lab.write_markers()
    assert isinstance(lab.verify(producer), PartitionNotInTransaction)


def test_a_delayed_end_does_not_hit_the_next_transaction() -> None:
    """F16."""
    lab = Lab()
    producer = lab.started()
    lab.add(producer)
    following = lab.end(producer, is_commit=True)
    assert isinstance(following, Identity)
    lab.write_markers()
    lab.add(following)
    for is_commit in (False, True):
        assert isinstance(lab.end(producer, is_commit=is_commit), EpochFenced)
    assert lab.is_in(State.Ongoing)


@pytest.mark.parametrize("how", ["time-out", "new producer"])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("epoch", [CLIENT_EPOCH_MAX - 1, CLIENT_EPOCH_MAX])
def test_used_up_epochs_leave_no_transaction_open(epoch: int, version: int, how: str) -> None:
    """F17: the epoch cannot be raised any more, and the transaction must end all the same."""
    lab = Lab()
    zombie = lab.at_epoch(epoch, version)
    lab.add(zombie, version=version)
    if how == "time-out":
        lab.pass_time(60_000)
    else:
        assert isinstance(lab.init(), TransactionEnding)
    assert lab.is_in(State.PrepareAbort)
    assert epoch < lab.transaction.epoch <= EPOCH_MAX
    lab.write_markers()
    assert lab.is_in(State.CompleteAbort)
    for outcome in (lab.end(zombie, is_commit=False), lab.add(zombie, version=version)):
        assert isinstance(outcome, EpochFenced)
    successor = lab.started()
    assert successor.epoch <= CLIENT_EPOCH_MAX
    assert successor != zombie
    assert lab.add(successor) is DONE


def test_the_last_epoch_is_followed_by_a_fresh_producer_id() -> None:
    lab = Lab()
    producer = lab.at_epoch(CLIENT_EPOCH_MAX)
    lab.add(producer)
    following = lab.end(producer, is_commit=True)
    assert isinstance(following, Identity)
    assert following.producer_id != producer.producer_id
    assert following.epoch == 0
    assert lab.effects[0].producer == Identity(producer.producer_id, EPOCH_MAX)
    assert isinstance(lab.add(following), TransactionEnding), "the new identity waits for the markers"
    assert isinstance(lab.end(producer, is_commit=True), TransactionEnding)
    lab.write_markers()
    assert lab.end(producer, is_commit=True) == following, "a repeated request gets the same answer"
    assert lab.add(following) is DONE


def test_an_empty_abort_after_a_commit_does_not_fence_the_producer() -> None:
    """F18."""
    lab = Lab()
    producer = lab.started()
    lab.add(producer)
    second = lab.end(producer, is_commit=True)
    assert isinstance(second, Identity)
    assert isinstance(lab.end(second, is_commit=False), TransactionEnding), "the markers are on their way"
    lab.write_markers()
    third = lab.end(second, is_commit=False)
    assert third == Identity(second.producer_id, second.epoch + 1)
    assert isinstance(third, Identity)
    assert lab.end(second, is_commit=False) == third, "asked again after a lost answer"
    assert isinstance(lab.end(third, is_commit=True), InvalidTransactionState), "nothing to commit"
    assert lab.add(third) is DONE


def test_a_repeated_commit_gets_the_same_answer_and_an_abort_instead_is_refused() -> None:
    lab = Lab()
    producer = lab.started()
    lab.add(producer)
    following = lab.end(producer, is_commit=True)
    assert isinstance(lab.end(producer, is_commit=True), TransactionEnding)
    assert isinstance(lab.end(producer, is_commit=False), InvalidTransactionState)
    lab.write_markers()
    assert lab.end(producer, is_commit=True) == following
    assert isinstance(lab.end(producer, is_commit=False), InvalidTransactionState)


def test_an_abandoned_transaction_is_aborted_when_its_time_is_up() -> None:
    lab = Lab()
    producer = lab.started()
    lab.add(producer)
    lab.pass_time(59_999)
    assert lab.is_in(State.Ongoing)
    lab.pass_time(1)
    assert lab.is_in(State.PrepareAbort)
    assert isinstance(lab.end(producer, is_commit=True), EpochFenced)


def test_the_time_out_of_an_earlier_transaction_means_nothing_to_the_next() -> None:
    lab = Lab()
    producer = lab.started()
    lab.add(producer, version=0)
    lab.end(producer, is_commit=True, version=0)
    lab.write_markers()
    lab.pass_time(59_000)
    lab.add(producer, version=0)
    lab.give(TransactionTimedOut(NAME, producer))
    assert lab.is_in(State.Ongoing)
    assert NAME in lab.timers


def test_a_producer_that_goes_on_after_an_error_gets_its_next_epoch_once() -> None:
    lab = Lab()
    first = lab.started()
    second = lab.init(first)
    assert second == Identity(first.producer_id, first.epoch + 1)
    assert lab.init(first) == second, "asked again after a lost answer"
    assert isinstance(lab.init(Identity(first.producer_id + 7, 0)), EpochFenced)
    lab.started()
    assert isinstance(lab.init(first), EpochFenced), "another producer has taken over"


def test_foreign_identities_are_refused() -> None:
    """S14."""
    lab = Lab()
    producer = lab.started()
    lab.add(producer)
    foreign = Identity(producer.producer_id + 1, producer.epoch)
    for outcome in (lab.add(foreign), lab.verify(foreign), lab.end(foreign, is_commit=True)):
        assert isinstance(outcome, WrongProducerId)
    assert isinstance(lab.verify(producer, TopicPartition("other", 1)), PartitionNotInTransaction)
    assert isinstance(Lab().verify(producer), WrongProducerId)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_time_outs_are_bounded(timeout_ms: int) -> None:
    assert isinstance(Lab().init(timeout_ms=timeout_ms), InvalidTransactionTimeout)


def test_unused_transactional_ids_are_forgotten_and_open_ones_are_not() -> None:
    lab = Lab(TransactionSettings(id_expiration_ms=1_000, id_expiration_check_ms=100))
    lab.carry_out(lab.machine.resume(lab.now_ms))
    lab.started("idle")
    producer = lab.started()
    lab.add(producer)
    lab.pass_time(2_000)
    assert list(lab.machine.transactions) == [NAME]
    assert lab.reloaded().machine.transactions == lab.machine.transactions


def test_a_restart_in_every_state_ends_what_was_prepared() -> None:
    lab = Lab()
    producer = lab.started()
    assert lab.reloaded().transaction == lab.transaction
    lab.add(producer, ORDERS, BILLS)
    open_again = lab.reloaded()
    assert open_again.transaction == lab.transaction
    assert NAME in open_again.timers, "or it would hold up readers for ever"
    for is_commit in (True, False):
        producer = lab.started()
        lab.add(producer, ORDERS, BILLS)
        lab.end(producer, is_commit=is_commit)
        again = lab.reloaded()
        assert again.effects == lab.effects
        again.write_markers()
        lab.write_markers()
        assert again.transaction == lab.transaction
        assert lab.reloaded().transaction == lab.transaction
        assert not lab.reloaded().effects
