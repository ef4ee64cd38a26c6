"""Every acknowledged record is there, once, at its offset, in its topic, and is seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.history import DeletionAsked, Polled, RecordsStay, SequenceBroken, TopicDeleted

IN_FLIGHT_MS: Final = 500
"""How long an answer may have been on its way."""


def nothing_acknowledged_is_lost(facts: Facts) -> Iterator[Violation]:
    """Every acknowledged record is there in the end. The loss is called a lost write where a later offset of
    the partition is there."""
    values_of = {
        (topic, partition): {value: offset for offset, value in final.records}
        for (topic, partition, committed_only), final in facts.final.items()
        if not committed_only
    }
    for acked in facts.acked:
        final = facts.final.get((acked.topic, acked.partition, False))
        if final is None:
            continue
        found = values_of[acked.topic, acked.partition]
        if acked.value in found or 0 <= acked.offset < final.log_start:
            continue
        if facts.may_be_lost(acked.topic, acked.partition, acked.offset):
            continue
        check = "lost write" if final.high_watermark > acked.offset else "lost"
        yield Violation(
            check,
            f"{acked.value} was acknowledged at {acked.offset} of {acked.topic}-{acked.partition}, which "
            f"ends at {final.high_watermark}",
        )


def nothing_is_hidden(facts: Facts) -> Iterator[Violation]:
    """Without retention a log begins where somebody asked it to, or before that."""
    asked: dict[tuple[str, int], int] = {}
    for event in facts.history.of(DeletionAsked):
        place = event.topic, event.partition
        asked[place] = max(asked.get(place, 0), event.before_offset)
    if not any(True for _ in facts.history.of(RecordsStay)):
        return
    for (topic, partition, committed_only), final in facts.final.items():
        allowed = asked.get((topic, partition), 0)
        if not committed_only and final.log_start > allowed:
            yield Violation(
                "hidden",
                f"{topic}-{partition} begins at {final.log_start}, and nobody asked for more than {allowed}",
            )


def committed_transactions_are_whole(facts: Facts) -> Iterator[Violation]:
    """Every record of a committed transaction is there for readers of committed records."""
    values_of = {
        (topic, partition): dict.fromkeys(value for _, value in final.records)
        for (topic, partition, committed_only), final in facts.final.items()
        if committed_only
    }
    for acked in facts.acked:
        if acked.transaction and facts.outcomes.get((acked.producer, acked.transaction)) == "commit":
            final = facts.final.get((acked.topic, acked.partition, True))
            if (
                final is None
                or 0 <= acked.offset < final.log_start
                or facts.has_damage(acked.topic, acked.partition)
            ):
                continue
            if acked.value not in values_of[acked.topic, acked.partition]:
                yield Violation(
                    "part of a transaction",
                    f"{acked.value} was committed by {acked.producer} in its transaction "
                    f"{acked.transaction} and is not there",
                )


def no_duplicates(facts: Facts) -> Iterator[Violation]:
    for (topic, partition, committed_only), final in facts.final.items():
        seen: dict[str, int] = {}
        for offset, value in final.records:
            # A copier sends a value again after an abort; readers of committed records see it once.
            is_sent_once = len(facts.sent.get(value, ())) <= 1
            if value in seen and (committed_only or is_sent_once):
                yield Violation(
                    "duplicate", f"{value} is at {seen[value]} and {offset} of {topic}-{partition}"
                )
            seen[value] = offset


def one_offset_one_value(facts: Facts) -> Iterator[Violation]:
    """Inconsistent offsets: two who looked at the same offset saw different values."""
    known: dict[tuple[str, int, int], str] = {}
    witnesses: list[tuple[str, int, int, str]] = [
        (acked.topic, acked.partition, acked.offset, acked.value)
        for acked in facts.acked
        if acked.offset >= 0
    ]
    for polled in facts.polled:
        witnesses += [(polled.topic, polled.partition, offset, value) for offset, value in polled.records]
    for (topic, partition, _), final in facts.final.items():
        witnesses += [(topic, partition, offset, value) for offset, value in final.records]
    for topic, partition, offset, value in witnesses:
        before = known.setdefault((topic, partition, offset), value)
        if before != value:
            yield Violation(
                "inconsistent offsets", f"offset {offset} of {topic}-{partition}: {before} and {value}"
            )


def every_record_in_its_topic(facts: Facts) -> Iterator[Violation]:
    for polled in facts.history.of(Polled):
        for offset, value in polled.records:
            if value.partition("|")[0] != polled.topic:
                yield Violation("wrong topic", f"{value} at {offset} of {polled.topic}-{polled.partition}")


def old_topics_stay_gone(facts: Facts) -> Iterator[Violation]:
    """What was sent to a topic before its deletion does not turn up in the next topic of that name."""
    deleted_at: dict[str, list[int]] = {}
    for event in facts.history.of(TopicDeleted):
        deleted_at.setdefault(event.topic, []).append(event.at)
    for polled in facts.history.of(Polled):
        for at in deleted_at.get(polled.topic, ()):
            if polled.at <= at + IN_FLIGHT_MS:
                continue
            for offset, value in polled.records:
                if any(sent.at < at for sent in facts.sent.get(value, ())):
                    yield Violation(
                        "old topic", f"{polled.consumer} got {value} at {offset} after its topic was deleted"
                    )


def everything_is_seen(facts: Facts) -> Iterator[Violation]:
    """Unseen: a committed record that none of the consumers of its topic ever got, though they caught up."""
    seen: dict[tuple[str, str, int], dict[str, None]] = {}
    for polled in facts.polled:
        # The members of a group share the work; a consumer by itself has to see everything.
        reader = polled.consumer.partition("/")[0]
        found = seen.setdefault((reader, polled.topic, polled.partition), {})
        found.update(dict.fromkeys(value for _, value in polled.records))
    for (reader, topic, partition), values in seen.items():
        final = facts.final.get((topic, partition, True))
        if final is None or facts.has_damage(topic, partition):
            continue
        for offset, value in final.records:
            if value not in values:
                yield Violation("unseen", f"{reader} never got {value} at {offset} of {topic}-{partition}")


def sequences_hold(facts: Facts) -> Iterator[Violation]:
    """A producer that numbers without gaps is not told that there is one."""
    for event in facts.history.of(SequenceBroken):
        if not facts.has_damage(event.topic, event.partition) and event.topic not in facts.deleted:
            yield Violation(
                "sequence",
                f"{event.producer} was refused with {event.code} by {event.topic}-{event.partition}",
            )
