"""All copies of a partition are the same, as far as all of them are committed."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import ReplicaRead


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


def _between(read: ReplicaRead, start: int, end: int) -> dict[int, int]:
    return {offset: checksum for offset, checksum in read.batches if start <= offset < end}
