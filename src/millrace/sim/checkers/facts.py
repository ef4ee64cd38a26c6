"""A history sorted by what checkers ask for."""

from __future__ import annotations

from typing import NamedTuple

from millrace.core.override import override
from millrace.sim.history import (
    Acked,
    FinalRead,
    History,
    MayBeLost,
    OffsetsExpire,
    Polled,
    Sent,
    TopicDeleted,
    TransactionEnded,
)

Place = tuple[str, int]
Transaction = tuple[str, int]
"""A producer, and its own number of the transaction."""


class Violation(NamedTuple):
    """What a checker found that must not be."""

    check: str
    what: str

    @override
    def __str__(self) -> str:
        return f"{self.check}: {self.what}"


class Facts:
    """The events of a history, by what they are about."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.deleted = {event.topic: None for event in history.of(TopicDeleted)}
        self.sent: dict[str, list[Sent]] = {}
        for sent in history.of(Sent):
            self.sent.setdefault(sent.value, []).append(sent)
        self.acked = [event for event in history.of(Acked) if event.topic not in self.deleted]
        self.polled = [event for event in history.of(Polled) if event.topic not in self.deleted]
        self.outcomes: dict[Transaction, str] = {
            (event.producer, event.transaction): event.outcome for event in history.of(TransactionEnded)
        }
        self.final: dict[tuple[str, int, bool], FinalRead] = {
            (event.topic, event.partition, event.committed_only): event for event in history.of(FinalRead)
        }
        self.offsets_expire_ms = next((event.after_ms for event in history.of(OffsetsExpire)), None)
        self._lost: dict[Place, list[tuple[int, int]]] = {}
        for event in history.of(MayBeLost):
            place = (event.topic, event.partition)
            self._lost.setdefault(place, []).append((event.first_offset, event.last_offset))
        self._writer_at = {
            (event.topic, event.partition, event.offset): (event.producer, event.transaction)
            for event in self.acked
            if event.transaction
        }

    def may_be_lost(self, topic: str, partition: int, offset: int) -> bool:
        return any(first <= offset <= last for first, last in self._lost.get((topic, partition), ()))

    def has_damage(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._lost

    def may_be_forgotten(self, committed_at: int | None, now: int) -> bool:
        """Whether an offset that was last committed then may be gone by now."""
        expire_ms = self.offsets_expire_ms
        return committed_at is not None and expire_ms is not None and now - committed_at >= expire_ms

    def outcomes_of(self, value: str) -> list[str]:
        """How the writes of a value ended, one outcome for each time that it was sent: plain, commit, abort
        or unknown."""
        return [
            self.outcomes.get((sent.producer, sent.transaction), "unknown") if sent.transaction else "plain"
            for sent in self.sent.get(value, ())
        ]

    def outcome_at(self, topic: str, partition: int, offset: int, value: str) -> str:
        """How the write of the value at an offset ended; the most favourable outcome if several are
        possible."""
        writer = self._writer_at.get((topic, partition, offset))
        if writer is not None:
            return self.outcomes.get(writer, "unknown")
        outcomes = self.outcomes_of(value)
        return next((each for each in ("plain", "commit", "unknown") if each in outcomes), "abort")
