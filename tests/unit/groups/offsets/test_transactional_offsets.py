"""Offsets that are committed in transactions: they count from the commit on, live and after a restart."""

from __future__ import annotations

from millrace.coordinator.decision import Applied, Producer, TransactionalRecord, TransactionEnded
from millrace.groups.commands import (
    UNSTABLE,
    CommitInTransaction,
    CommitOffsets,
    EndOffsetTransaction,
    FetchOffsets,
    GroupSettings,
    OffsetsFetched,
    OffsetToCommit,
)
from millrace.groups.errors import IllegalGeneration
from millrace.groups.machine import GroupMachine
from millrace.log.state.transactions import EndMarker

GROUP = "readers"
FIRST, SECOND = Producer(1, 0), Producer(2, 0)


class Lab:
    def __init__(self) -> None:
        self.machine = GroupMachine(GroupSettings())
        self.log: list[Applied] = []

    def give(self, command: object) -> object:
        decision = self.machine.decide(command, 1_000, 0)
        for record in decision.records:
            producer = decision.producer
            self._apply(record if producer is None else TransactionalRecord(producer.producer_id, record))
        if decision.marker is not None:
            self._apply(TransactionEnded(decision.marker.producer_id, decision.marker.is_commit))
        return decision.error if decision.error is not None else decision.response

    def _apply(self, record: Applied) -> None:
        self.log.append(record)
        self.machine.apply(record)

    def commit(self, offset: int, producer: Producer | None = None, generation: int = -1) -> object:
        command = CommitOffsets(
            group_id=GROUP,
            member_id="m" if generation >= 0 else "",
            generation=generation,
            offsets=[OffsetToCommit("orders", 0, offset, 0, "")],
        )
        return self.give(command if producer is None else CommitInTransaction(producer, command))

    def end(self, producer: Producer, *, is_commit: bool) -> None:
        self.give(EndOffsetTransaction(EndMarker(*producer, is_commit, 0)))

    def offset(self, *, require_stable: bool = False) -> int | None:
        outcome = self.give(FetchOffsets(GROUP, [("orders", 0)], require_stable=require_stable))
        assert isinstance(outcome, OffsetsFetched)
        committed = outcome.offsets[0][2]
        assert committed is not UNSTABLE or require_stable
        return None if committed is None else committed.offset

    def reloaded(self) -> Lab:
        other = Lab()
        for record in self.log:
            other._apply(record)
        return other


def test_offsets_of_a_transaction_count_from_its_commit_on() -> None:
    lab = Lab()
    lab.commit(5)
    lab.commit(9, FIRST)
    assert lab.offset() == 5
    assert lab.offset(require_stable=True) == UNSTABLE.offset
    again = lab.reloaded()
    for each in (lab, again):
        each.end(FIRST, is_commit=True)
        assert each.offset(require_stable=True) == 9


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    lab = Lab()
    lab.commit(5)
    lab.commit(9, FIRST)
    lab.end(FIRST, is_commit=False)
    assert lab.offset(require_stable=True) == 5
    assert lab.reloaded().offset() == 5


def test_a_later_commit_is_not_overwritten_by_an_earlier_transaction() -> None:
    lab = Lab()
    lab.commit(5, FIRST)
    lab.commit(7, SECOND)
    lab.commit(9)
    lab.end(FIRST, is_commit=True)
    lab.end(SECOND, is_commit=True)
    assert lab.offset() == lab.reloaded().offset() == 9


def test_two_transactions_are_kept_apart() -> None:
    lab = Lab()
    lab.commit(5, FIRST)
    lab.commit(7, SECOND)
    lab.end(SECOND, is_commit=False)
    assert lab.offset(require_stable=True) == UNSTABLE.offset
    lab.end(FIRST, is_commit=True)
    assert lab.offset(require_stable=True) == 5


def test_a_member_that_is_not_in_the_group_cannot_commit() -> None:
    lab = Lab()
    assert isinstance(lab.commit(5, FIRST, generation=3), IllegalGeneration)
    lab.end(FIRST, is_commit=True)
    assert lab.offset() is None
