"""A share group gives each record to one member at a time, again while it is not done, and never after
that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace.sim.checkers.facts import Facts, Violation
from millrace.sim.clients.share_consumer import ACCEPT, GAP, NO_ANSWER, REJECT, RENEW
from millrace.sim.clock import START_MS
from millrace.sim.history import (
    DeadLettersRead,
    DelayedUntil,
    ShareAcked,
    ShareAcquired,
    ShareFetchLost,
    ShareGroupBegun,
    ShareGroupDone,
    ShareStateCompared,
)
from millrace.wire.error_codes import ErrorCode

_FINAL: Final = (GAP, ACCEPT, REJECT)
_REFUSED: Final = (
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
)
"""With any other error an acknowledgement may count all the same: its answer was lost between brokers."""

Share = tuple[str, str, int]
"""A group and one partition."""


@dataclass(slots=True)
class _Hold:
    """What a member was told to have, for at least so long."""

    event: ShareAcquired
    until: int


class _Members:
    """What is known of members before and after a moment."""

    def __init__(self, facts: Facts) -> None:
        self._sure_until: dict[tuple[str, int], int] = {}
        self._spoken_at: dict[tuple[Share, str, int], list[int]] = {}
        for event in facts.history.events:
            if (isinstance(event, ShareAcked) and event.code != NO_ANSWER) or isinstance(
                event, ShareAcquired
            ):
                key = (event.member, event.session)
                self._sure_until[key] = max(self._sure_until.get(key, 0), event.asked_at)
            if isinstance(event, ShareAcked):
                for first, last, kind in event.acks:
                    if kind != RENEW:
                        for offset in range(first, last + 1):
                            of_offset = (_share(event), event.member, offset)
                            self._spoken_at.setdefault(of_offset, []).append(event.asked_at)

    def holds(self, hold: _Hold, offset: int, at: int) -> bool:
        """Whether a member has a record for sure: its lock lasts, its session has answered a request that
        left later, and it has not said what has become of the record."""
        event = hold.event
        spoken_at = self._spoken_at.get((_share(event), event.member, offset), ())
        return at < min(hold.until, self._sure_until[event.member, event.session]) and not any(
            event.at <= moment <= at for moment in spoken_at
        )


def _offsets(event: ShareAcquired | ShareAcked) -> Iterator[int]:
    ranges = event.runs if isinstance(event, ShareAcquired) else event.acks
    return (offset for first, last, _ in ranges for offset in range(first, last + 1))


def _share(event: ShareAcquired | ShareAcked) -> Share:
    return event.group, event.topic, event.partition


def one_holder_at_a_time(facts: Facts) -> Iterator[Violation]:
    """No record is with two members at once, and nobody loses one before its lock is over. Only a new leader,
    who does not know of locks, may give a record to somebody else."""
    members = _Members(facts)
    holds: dict[Share, dict[int, _Hold]] = {}
    for event in facts.history.events:
        if isinstance(event, ShareAcked):
            of_share = holds.setdefault(_share(event), {})
            yield from _taken_away(of_share, event)
            _end_holds(of_share, event)
        elif isinstance(event, ShareAcquired):
            of_share = holds.setdefault(_share(event), {})
            for offset in _offsets(event):
                held, hold = of_share.get(offset), _Hold(event, event.asked_at + event.lock_ms)
                of_share[offset] = hold
                if (
                    held is not None
                    and held.event.member != event.member
                    and event.term
                    and held.event.term == event.term
                    and members.holds(held, offset, event.at)
                    and members.holds(hold, offset, event.at)
                ):
                    yield Violation(
                        "two holders",
                        f"{event.topic}-{event.partition} offset {offset} of {event.group} is with "
                        f"{held.event.member} since {held.event.at} ms until {held.until} ms, and given to "
                        f"{event.member} at {event.at} ms, asked at {event.asked_at} ms",
                    )


def _taken_away(of_share: dict[int, _Hold], event: ShareAcked) -> Iterator[Violation]:
    if event.code != ErrorCode.INVALID_RECORD_STATE or not event.term:
        return
    held = [of_share.get(offset) for offset in _offsets(event)]
    if held and all(
        hold is not None
        and (hold.event.member, hold.event.session, hold.event.term)
        == (event.member, event.session, event.term)
        and event.at < hold.until
        for hold in held
    ):
        yield Violation(
            "lost lock",
            f"{event.member} may not acknowledge {event.acks} of {event.topic}-{event.partition} at "
            f"{event.at} ms, before its lock is over",
        )


def _end_holds(of_share: dict[int, _Hold], event: ShareAcked) -> None:
    for first, last, kind in event.acks:
        for offset in range(first, last + 1):
            hold = of_share.get(offset)
            if hold is None or hold.event.member != event.member:
                continue
            if kind != RENEW:
                del of_share[offset]
            elif event.code == 0 and hold.event.session == event.session:
                hold.until = max(hold.until, event.asked_at)


def what_is_done_stays_done(facts: Facts) -> Iterator[Violation]:
    """What was accepted or rejected, and that was answered, is given to nobody who asks later."""
    done: dict[Share, dict[int, int]] = {}
    for event in facts.history.events:
        if isinstance(event, ShareAcked) and event.code == 0:
            of_share = done.setdefault(_share(event), {})
            for first, last, kind in event.acks:
                if kind in _FINAL:
                    for offset in range(first, last + 1):
                        of_share.setdefault(offset, event.at)
        elif isinstance(event, ShareAcquired) and event.term:
            of_share = done.get(_share(event), {})
            for offset in _offsets(event):
                if of_share.get(offset, event.asked_at) < event.asked_at:
                    yield Violation(
                        "delivered after its end",
                        f"{event.topic}-{event.partition} offset {offset} of {event.group} was done at "
                        f"{of_share[offset]} ms, and {event.member} got it at {event.at} ms",
                    )


def _session_spans(facts: Facts) -> dict[tuple[Share, str], dict[tuple[str, int], tuple[int, int]]]:
    """When each session began to be served, and when its last request left, by share partition and term."""
    spans: dict[tuple[Share, str], dict[tuple[str, int], tuple[int, int]]] = {}
    for event in facts.history.of(ShareAcquired):
        of_term = spans.setdefault((_share(event), event.term), {})
        session = (event.member, event.session)
        of_term[session] = (of_term.get(session, (event.at, 0))[0], event.asked_at)
    return spans


def deliveries_are_counted(facts: Facts) -> Iterator[Violation]:
    """The count is at most the limit, and falls only with a new leader, or when no session of the group was
    left: then the leader, too, knows no more than what it could store."""
    spans = _session_spans(facts)
    limits = {event.group: event.deliveries_max for event in facts.history.of(ShareGroupBegun)}
    seen: dict[tuple[Share, int], ShareAcquired] = {}
    counts: dict[tuple[Share, int], int] = {}
    for event in facts.history.of(ShareAcquired):
        for first, last, count in event.runs:
            for offset in range(first, last + 1):
                key = (_share(event), offset)
                before = seen.get(key)
                what = f"{event.topic}-{event.partition} offset {offset} of {event.group}"
                if not 0 < count <= limits.get(event.group, count):
                    yield Violation("delivery count", f"{what} is delivered for the {count}th time")
                if (
                    before is not None
                    and event.term
                    and before.term == event.term
                    and before.at < event.asked_at
                    and count < counts[key]
                    and any(
                        first <= before.at and event.asked_at <= last
                        for first, last in spans[key[0], event.term].values()
                    )
                ):
                    yield Violation(
                        "delivery count",
                        f"{what} is delivered for the {count}th time after the {counts[key]}th",
                    )
                seen[key], counts[key] = event, count


def nothing_is_passed_over(facts: Facts) -> Iterator[Violation]:
    """In the end nothing is left, the lag says so, and every record was acknowledged by somebody or given up
    after the last of its deliveries. A fetch without an answer may have been any of these."""
    limits = {event.group: event.deliveries_max for event in facts.history.of(ShareGroupBegun)}
    spoken: dict[Share, dict[int, None]] = {}
    counts: dict[Share, dict[int, int]] = {}
    lost: dict[Share, int] = {}
    for event in facts.history.events:
        if isinstance(event, ShareAcked):
            of_share = spoken.setdefault(_share(event), {})
            for first, last, kind in event.acks:
                if kind in _FINAL and event.code not in _REFUSED:
                    of_share.update(dict.fromkeys(range(first, last + 1)))
        elif isinstance(event, ShareAcquired):
            of_counts = counts.setdefault(_share(event), {})
            for first, last, count in event.runs:
                for offset in range(first, last + 1):
                    of_counts[offset] = max(of_counts.get(offset, 0), count)
        elif isinstance(event, ShareFetchLost):
            for topic, partition in event.places:
                key = (event.group, topic, partition)
                lost[key] = lost.get(key, 0) + 1
    for done in facts.history.of(ShareGroupDone):
        share = (done.group, done.topic, done.partition)
        final = facts.final.get((done.topic, done.partition, True))
        for offset, value in () if final is None else final.records:
            seen = counts.get(share, {}).get(offset, 0)
            if (
                offset < done.start_offset
                and offset not in spoken.get(share, {})
                and seen + lost.get(share, 0) < limits[done.group]
            ):
                yield Violation(
                    "passed over",
                    f"{value} at {done.topic}-{done.partition} offset {offset} is done for {done.group}, "
                    f"which was given it {seen} times and has acknowledged it never",
                )


def state_is_what_was_stored(facts: Facts) -> Iterator[Violation]:
    """A new leader would find all that is done. It may find more: a write whose answer was lost may have been
    stored, and its records are offered once more for as long as this leader stays."""
    for event in facts.history.of(ShareStateCompared):
        if not _covers(event.stored, event.memory):
            yield Violation(
                "stored state",
                f"{event.topic}-{event.partition} of {event.group}: {event.memory} in memory, {event.stored} "
                "stored",
            )


def _covers(stored: tuple[int, list[tuple[int, int]]], memory: tuple[int, list[tuple[int, int]]]) -> bool:
    start, done = stored
    ranges = [(0, start - 1), *done]
    memory_start, memory_done = memory
    return all(
        any(first <= range_first and range_last <= last for first, last in _joined(ranges))
        for range_first, range_last in ((0, memory_start - 1), *memory_done)
    )


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def what_is_given_up_has_a_dead_letter(facts: Facts) -> Iterator[Violation]:
    """Where a group has dead letters, a record that is done was accepted, or there is a dead letter."""
    letters = {event.group: dict.fromkeys(event.values) for event in facts.history.of(DeadLettersRead)}
    accepted: dict[Share, dict[int, None]] = {}
    for event in facts.history.of(ShareAcked):
        of_share = accepted.setdefault(_share(event), {})
        for first, last, kind in event.acks:
            if kind == ACCEPT and event.code not in _REFUSED:
                of_share.update(dict.fromkeys(range(first, last + 1)))
    for done in facts.history.of(ShareGroupDone):
        final = facts.final.get((done.topic, done.partition, True))
        if done.group not in letters or final is None:
            continue
        of_share = accepted.get((done.group, done.topic, done.partition), {})
        for offset, value in final.records:
            if offset < done.start_offset and offset not in of_share and value not in letters[done.group]:
                yield Violation(
                    "no dead letter",
                    f"{value} at {done.topic}-{done.partition} offset {offset} is done for {done.group}, was "
                    "never accepted and has no dead letter",
                )


def nothing_comes_early(facts: Facts) -> Iterator[Violation]:
    """Nobody sees a delayed record before it is due."""
    due = {event.value: event.due_ms for event in facts.history.of(DelayedUntil)}
    for polled in facts.polled if due else ():
        for offset, value in polled.records:
            if value in due and START_MS + polled.at < due[value]:
                yield Violation(
                    "early",
                    f"{polled.consumer} got {value} at {polled.topic}-{polled.partition} offset {offset} "
                    f"{due[value] - START_MS - polled.at} ms before its time",
                )
