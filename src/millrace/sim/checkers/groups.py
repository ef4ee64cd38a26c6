"""A group owns a partition once in a generation, only its owner commits, and what is committed does not go
back."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import Assigned, OffsetCommitted, OffsetFetched


def partitions_have_one_owner(facts: Facts) -> Iterator[Violation]:
    owners: dict[tuple[str, int, tuple[str, int]], str] = {}
    for event in facts.history.of(Assigned):
        for place in event.partitions:
            owner = owners.setdefault((event.group, event.generation, place), event.member)
            if owner != event.member:
                yield Violation(
                    "two owners",
                    f"{place[0]}-{place[1]} belongs to {owner} and {event.member} in generation "
                    f"{event.generation} of {event.group}",
                )


def only_owners_commit(facts: Facts) -> Iterator[Violation]:
    """A commit of an old generation that comes after the next one was handed out must have been refused."""
    begun: dict[str, list[tuple[int, int]]] = {}
    for event in facts.history.events:
        if isinstance(event, Assigned):
            begun.setdefault(event.group, []).append((event.generation, event.at))
        elif isinstance(event, OffsetCommitted) and event.generation >= 0:
            for generation, at in begun.get(event.group, ()):
                if generation > event.generation and at < event.asked_at:
                    yield Violation(
                        "commit of an old generation",
                        f"{event.member} committed {event.offset} in generation {event.generation} of "
                        f"{event.group} after generation {generation} had begun",
                    )
                    break


def commits_do_not_go_back(facts: Facts) -> Iterator[Violation]:
    """Whoever asks gets at least what was acknowledged before he asked."""
    known: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for event in facts.history.events:
        if isinstance(event, OffsetCommitted | OffsetFetched):
            if event.topic in facts.deleted or facts.has_damage(event.topic, event.partition):
                continue
            key = (event.group, event.topic, event.partition)
            history = known.setdefault(key, [])
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
