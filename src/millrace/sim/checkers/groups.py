"""A group owns a partition once in a generation, only its owner commits, and what is committed does not go
back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import Assigned, OffsetCommitted, OffsetFetched

FORGOTTEN_AFTER_MS: Final = 300_000
"""All members of a generation hear of it within less time: an assignment that comes later belongs to a new
group of that name."""
DROPPED_AFTER_MS: Final = 60_000
"""The same time for a group that has committed nothing: it is forgotten once its members' sessions are
over."""


class _Lives:
    """Counts how often a group was forgotten, with its offsets: the next group of its name counts its
    generations from the beginning."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._committed_at: dict[str, int] = {}
        self._assigned_at: dict[str, int] = {}
        self._generations: dict[str, int] = {}
        self._lives: dict[str, int] = {}

    def of(self, event: Assigned | OffsetCommitted) -> tuple[str, int]:
        """The group, and which of its lives an event belongs to."""
        group = event.group
        if isinstance(event, OffsetCommitted):
            self._committed_at[group] = event.at
        else:
            highest = self._generations.get(group, -1)
            if event.generation <= highest and self._may_be_another(event):
                self._lives[group] = self._lives.get(group, 0) + 1
                highest = -1
                self._committed_at.pop(group, None)
            self._generations[group] = max(highest, event.generation)
            self._assigned_at[group] = event.at
        return group, self._lives.get(group, 0)

    def _may_be_another(self, event: Assigned) -> bool:
        facts, group = self._facts, event.group
        committed_at = self._committed_at.get(group)
        # A group without offsets is forgotten as soon as it is empty and somebody looks.
        apart_ms = DROPPED_AFTER_MS if committed_at is None else FORGOTTEN_AFTER_MS
        if facts.offsets_expire_ms is None or event.at - self._assigned_at.get(group, 0) < apart_ms:
            return False
        return committed_at is None or facts.may_be_forgotten(committed_at, event.at)


def partitions_have_one_owner(facts: Facts) -> Iterator[Violation]:
    owners: dict[tuple[tuple[str, int], int, tuple[str, int]], str] = {}
    lives = _Lives(facts)
    for event in facts.history.events:
        if not isinstance(event, Assigned | OffsetCommitted):
            continue
        life = lives.of(event)
        if isinstance(event, OffsetCommitted):
            continue
        for place in event.partitions:
            owner = owners.setdefault((life, event.generation, place), event.member)
            if owner != event.member:
                yield Violation(
                    "two owners",
                    f"{place[0]}-{place[1]} belongs to {owner} and {event.member} in generation "
                    f"{event.generation} of {event.group}",
                )


def only_owners_commit(facts: Facts) -> Iterator[Violation]:
    """A commit of an old generation that comes after the next one was handed out must have been refused."""
    begun: dict[tuple[str, int], list[tuple[int, int]]] = {}
    lives = _Lives(facts)
    for event in facts.history.events:
        if not isinstance(event, Assigned | OffsetCommitted):
            continue
        life = lives.of(event)
        if isinstance(event, Assigned):
            begun.setdefault(life, []).append((event.generation, event.at))
        elif event.generation >= 0:
            for generation, at in begun.get(life, ()):
                if generation > event.generation and at < event.asked_at:
                    yield Violation(
                        "commit of an old generation",
                        f"{event.member} committed {event.offset} in generation {event.generation} of "
                        f"{event.group} after generation {generation} had begun",
                    )
                    break


def commits_do_not_go_back(facts: Facts) -> Iterator[Violation]:
    """Whoever asks for a committed offset gets at least what was acknowledged before."""
    known: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    committed_at: dict[tuple[str, str, int], int] = {}
    for event in facts.history.events:
        if isinstance(event, OffsetCommitted | OffsetFetched):
            if event.topic in facts.deleted or facts.has_damage(event.topic, event.partition):
                continue
            key = (event.group, event.topic, event.partition)
            history = known.setdefault(key, [])
            if isinstance(event, OffsetCommitted):
                committed_at[key] = event.at
            elif event.offset < 0 and facts.may_be_forgotten(committed_at.get(key), event.at):
                history.clear()
            if isinstance(event, OffsetFetched):
                least = max((offset for at, offset in history if at <= event.asked_at), default=-1)
                if event.offset < least:
                    yield Violation(
                        "committed offset went back",
                        f"{event.group} was told {event.offset} of {event.topic}-{event.partition} at "
                        f"{event.at} ms, after {least} had been acknowledged",
                    )
            highest = max(history[-1][1], event.offset) if history else event.offset
            history.append((event.at, highest))
            if len(history) > _KEPT:
                del history[: _KEPT // 2]


_KEPT = 200
