"""Consumers go forward without leaving anything out; a producer's records are in the order of its sends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import Sent


def polls_go_forward(facts: Facts) -> Iterator[Violation]:
    """Nonmonotonic poll: offsets grow within one session of a consumer."""
    last: dict[tuple[str, int, str, int], int] = {}
    for polled in facts.polled:
        key = (polled.consumer, polled.session, polled.topic, polled.partition)
        for offset, value in polled.records:
            if offset <= last.get(key, -1):
                yield Violation(
                    "nonmonotonic poll",
                    f"{polled.consumer} got {value} at {offset} after {last[key]} of "
                    f"{polled.topic}-{polled.partition}",
                )
            last[key] = offset


def polls_skip_nothing(facts: Facts) -> Iterator[Violation]:
    """Poll skip: the consumer moved past a record that is there for it to see, and did not get it."""
    offsets_of = {place: [offset for offset, _ in final.records] for place, final in facts.final.items()}
    for polled in facts.polled:
        offsets = offsets_of.get((polled.topic, polled.partition, polled.committed_only))
        if offsets is None:
            continue
        got = dict.fromkeys(offset for offset, _ in polled.records)
        at = bisect_left(offsets, polled.start)
        while at < len(offsets) and offsets[at] < polled.next_offset:
            if offsets[at] not in got:
                yield Violation(
                    "poll skip",
                    f"{polled.consumer} went from {polled.start} to {polled.next_offset} of "
                    f"{polled.topic}-{polled.partition} without offset {offsets[at]}",
                )
            at += 1


def sends_stay_in_order(facts: Facts) -> Iterator[Violation]:
    """Nonmonotonic send: offsets of one producer in one partition grow with its sends."""
    offset_of = {(acked.value, acked.transaction): acked.offset for acked in facts.acked}
    last: dict[tuple[str, str, int], tuple[int, str]] = {}
    for sent in facts.history.of(Sent):
        offset = offset_of.get((sent.value, sent.transaction), -1)
        if offset < 0:
            continue
        key = (sent.producer, sent.topic, sent.partition)
        before = last.get(key)
        if before is not None and offset <= before[0]:
            yield Violation(
                "nonmonotonic send",
                f"{sent.producer} sent {sent.value} after {before[1]}, but offset {offset} is not above "
                f"{before[0]}",
            )
        last[key] = (offset, sent.value)
