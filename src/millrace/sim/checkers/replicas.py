"""All copies of a partition are there, whole, and the same as far as all of them are committed."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import AskedInVain, ReplicaRead, ReplicasWanted


def copies_are_equal(facts: Facts) -> Iterator[Violation]:
    """No lasting split: two values at one offset, on whatever broker (F1, F2, F7)."""
    copies: dict[tuple[str, int], list[ReplicaRead]] = {}
    for event in facts.history.of(ReplicaRead):
        if event.topic not in facts.deleted:
            copies.setdefault((event.topic, event.partition), []).append(event)
    for (topic, partition), reads in copies.items():
        start = max(each.log_start for each in reads)
        end = min(each.high_watermark for each in reads)
        first, *others = reads
        expected = _between(first, start, end)
        for other in others:
            found = _between(other, start, end)
            if found != expected:
                offsets = [*expected, *found]
                at = next(offset for offset in sorted(offsets) if expected.get(offset) != found.get(offset))
                yield Violation(
                    "copies differ",
                    f"{topic}-{partition} on brokers {first.node_id} and {other.node_id} from {at} on",
                )


def copies_are_whole(facts: Facts) -> Iterator[Violation]:
    """In the end every broker that should have a copy has all of it, wherever it was moved, and no other
    broker has one."""
    ends: dict[tuple[str, int], dict[int, int]] = {}
    for event in facts.history.of(ReplicaRead):
        ends.setdefault((event.topic, event.partition), {})[event.node_id] = event.high_watermark
    for wanted in facts.history.of(ReplicasWanted):
        if wanted.topic in facts.deleted:
            continue
        found = ends.get((wanted.topic, wanted.partition), {})
        name = f"{wanted.topic}-{wanted.partition}"
        end = max(found.values(), default=0)
        for node_id in wanted.node_ids:
            if found.get(node_id, -1) < end or node_id not in found:
                yield Violation(
                    "copy incomplete",
                    f"{name} ends at {end}, on broker {node_id} at {found.get(node_id, 'nothing')}",
                )
        for node_id in found:
            if node_id not in wanted.node_ids:
                yield Violation("copy left over", f"{name} is on broker {node_id}, which should not have it")


def nobody_asks_in_vain(facts: Facts) -> Iterator[Violation]:
    """A follower that gets nothing from its leader's answers waits before it asks again."""
    for event in facts.history.of(AskedInVain):
        yield Violation(
            "spinning", f"broker {event.node_id} got {event.answers} answers in a second, for nothing"
        )


def _between(read: ReplicaRead, start: int, end: int) -> dict[int, int]:
    return {offset: checksum for offset, checksum in read.batches if start <= offset < end}
