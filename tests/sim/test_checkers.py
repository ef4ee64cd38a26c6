"""Every check condemns a history that breaks its promise, and lets a sound one pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.sim.checkers import violations
from millrace.sim.history import (
    Acked,
    AskedInVain,
    Assigned,
    Copying,
    DeletionAsked,
    Event,
    FencedItself,
    FinalRead,
    GuestServed,
    History,
    LateEndAccepted,
    MayBeLost,
    OffsetCommitted,
    OffsetFetched,
    OffsetsExpire,
    PermissionGiven,
    PermissionTaken,
    Polled,
    RecordsStay,
    RefusedConnections,
    ReplicaRead,
    ReplicasWanted,
    Sent,
    SequenceBroken,
    ServedWithoutLease,
    TopicDeleted,
    TransactionEnded,
    TransactionRead,
)

T = "orders"


def value(number: int, topic: str = T) -> str:
    return f"{topic}|p|{number}"


def sent(number: int, *, at: int = 0, producer: str = "p", transaction: int = 0) -> Sent:
    return Sent(at=at, producer=producer, topic=T, partition=0, value=value(number), transaction=transaction)


def acked(number: int, offset: int, *, producer: str = "p", transaction: int = 0) -> Acked:
    return Acked(
        at=1,
        producer=producer,
        topic=T,
        partition=0,
        value=value(number),
        offset=offset,
        transaction=transaction,
    )


def final(
    *records: tuple[int, int], committed_only: bool = False, end: int | None = None, stable: int | None = None
) -> FinalRead:
    high_watermark = end if end is not None else max((offset for offset, _ in records), default=-1) + 1
    return FinalRead(
        at=9,
        topic=T,
        partition=0,
        committed_only=committed_only,
        log_start=0,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if stable is None else stable,
        records=tuple((offset, value(number)) for offset, number in records),
    )


def polled(
    *records: tuple[int, int],
    consumer: str = "c",
    start: int = 0,
    end: int = 10,
    committed_only: bool = True,
    at: int = 5,
) -> Polled:
    return Polled(
        at=at,
        consumer=consumer,
        session=0,
        topic=T,
        partition=0,
        committed_only=committed_only,
        start=start,
        records=tuple((offset, value(number)) for offset, number in records),
        next_offset=end,
    )


def ended(outcome: str, *, producer: str = "p", transaction: int = 1) -> TransactionEnded:
    return TransactionEnded(at=3, producer=producer, transaction=transaction, outcome=outcome)


def read(*numbers: int, producer: str, transaction: int = 1) -> TransactionRead:
    return TransactionRead(
        at=2, producer=producer, transaction=transaction, values=tuple(value(number) for number in numbers)
    )


def assigned(member: str, generation: int, *, at: int = 1) -> Assigned:
    return Assigned(at=at, group="g", member=member, generation=generation, partitions=((T, 0),))


def committed(offset: int, *, generation: int = 1, at: int = 3) -> OffsetCommitted:
    return OffsetCommitted(
        at=at,
        group="g",
        member="m1",
        generation=generation,
        topic=T,
        partition=0,
        offset=offset,
        asked_at=at - 1,
    )


def fetched(offset: int, *, at: int = 6) -> OffsetFetched:
    return OffsetFetched(at=at, group="g", topic=T, partition=0, offset=offset, asked_at=at - 1)


def copy(node_id: int, *batches: tuple[int, int], end: int = 4) -> ReplicaRead:
    return ReplicaRead(
        at=9, node_id=node_id, topic=T, partition=0, log_start=0, high_watermark=end, batches=batches
    )


def wanted_on(*node_ids: int) -> ReplicasWanted:
    return ReplicasWanted(at=8, topic=T, partition=0, node_ids=node_ids)


def checks_failed(*events: Event) -> list[str]:
    history = History()
    for event in events:
        history.add(event)
    return list(dict.fromkeys(violation.check for violation in violations(history)))


BROKEN: dict[str, tuple[Event, ...]] = {
    "lost": (sent(1), acked(1, 4), final(end=4)),
    "lost write": (sent(1), acked(1, 0), sent(2), acked(2, 1), final((1, 2))),
    "hidden": (
        RecordsStay(at=0),
        DeletionAsked(at=1, topic=T, partition=0, before_offset=4),
        replace(final((5, 1)), log_start=5),
    ),
    "part of a transaction": (
        sent(1, transaction=1),
        acked(1, 0, transaction=1),
        ended("commit"),
        final((0, 1)),
        final(committed_only=True, end=1),
    ),
    "duplicate": (sent(1), acked(1, 0), final((0, 1), (1, 1))),
    "inconsistent offsets": (sent(1), sent(2), polled((0, 1), committed_only=False), final((0, 2))),
    "wrong topic": (
        Polled(
            at=5,
            consumer="c",
            session=0,
            topic="payments",
            partition=0,
            committed_only=True,
            start=0,
            records=((0, value(1)),),
            next_offset=1,
        ),
    ),
    "old topic": (sent(1, at=1), TopicDeleted(at=100, topic=T), polled((0, 1), at=5_000)),
    "unseen": (polled(end=0), final((0, 1), committed_only=True)),
    "sequence": (SequenceBroken(at=1, producer="p", topic=T, partition=0, code=45),),
    "nonmonotonic poll": (polled((5, 1)), polled((3, 2))),
    "poll skip": (polled((0, 1), (2, 3), end=3), final((0, 1), (1, 2), (2, 3), committed_only=True)),
    "nonmonotonic send": (sent(1), sent(2), acked(1, 5), acked(2, 3)),
    "aborted read": (
        sent(1, transaction=1),
        acked(1, 0, transaction=1),
        ended("abort"),
        polled((0, 1)),
    ),
    "circular information flow": (
        sent(1, producer="a", transaction=1),
        sent(2, producer="b", transaction=1),
        read(2, producer="a"),
        read(1, producer="b"),
        ended("commit", producer="a"),
        ended("commit", producer="b"),
    ),
    "hanging transaction": (final(committed_only=True, end=5, stable=3),),
    "fenced itself": (FencedItself(at=1, producer="p", reason="EndTxn: PRODUCER_FENCED"),),
    "late end": (LateEndAccepted(at=1, producer="p", transaction=2),),
    "not copied": (Copying(at=0, source=T, target="copies"), final((0, 1), committed_only=True)),
    "copies differ": (copy(1, (0, 11), (3, 12)), copy(2, (0, 11), (3, 13))),
    "copy incomplete": (wanted_on(1, 2), copy(1), copy(2, end=3)),
    "copy left over": (wanted_on(1), copy(1), copy(2)),
    "served without a lease": (
        ServedWithoutLease(at=9, host="10.0.0.1", what="Fetch", asked_at=8, gone_at=5),
    ),
    "taken for dead": (RefusedConnections(at=9, node_id=1, leases_lost=3, others=2),),
    "spinning": (AskedInVain(at=9, node_id=1, answers=900),),
    "two owners": (assigned("m1", 1), assigned("m2", 1)),
    "commit of an old generation": (assigned("m1", 1), assigned("m2", 2, at=2), committed(5, at=8)),
    "committed offset went back": (committed(5), fetched(4)),
}
FORGOTTEN_TOO_EARLY = (OffsetsExpire(at=0, after_ms=1_000), committed(5, at=500), fetched(-1, at=1_200))


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_promise_is_found(check: str) -> None:
    assert check in checks_failed(*BROKEN[check])


def test_offsets_that_are_forgotten_before_their_time_are_found() -> None:
    assert checks_failed(*FORGOTTEN_TOO_EARLY) == ["committed offset went back"]


def test_a_copy_that_is_missing_is_found() -> None:
    assert checks_failed(wanted_on(1, 2), copy(1)) == ["copy incomplete"]


SOUND: dict[str, tuple[Event, ...]] = {
    "a process that each of the others took for dead once": (
        RefusedConnections(at=9, node_id=1, leases_lost=2, others=2),
    ),
    "plain records": (
        sent(1),
        sent(2),
        acked(1, 0),
        acked(2, 1),
        polled((0, 1), (1, 2), end=2),
        final((0, 1), (1, 2)),
        final((0, 1), (1, 2), committed_only=True),
    ),
    "an aborted transaction that only readers of everything see": (
        sent(1, transaction=1),
        acked(1, 0, transaction=1),
        ended("abort"),
        polled((0, 1), end=2, committed_only=False),
        final((0, 1), end=2),
        final(committed_only=True, end=2),
    ),
    "an unanswered commit that took place": (
        sent(1, transaction=1),
        acked(1, 0, transaction=1),
        ended("unknown"),
        polled((0, 1), end=2),
        final((0, 1), (1, 2), end=2),
    ),
    "what the scenario destroyed": (
        sent(1),
        acked(1, 0),
        MayBeLost(at=2, topic=T, partition=0, first_offset=0, last_offset=0),
        final(end=1),
    ),
    "a log that begins where somebody asked it to": (
        RecordsStay(at=0),
        DeletionAsked(at=1, topic=T, partition=0, before_offset=5),
        replace(final((5, 1)), log_start=5),
    ),
    "a log that retention has shortened": (replace(final((5, 1)), log_start=5),),
    "a group that moves on": (
        assigned("m1", 1),
        committed(5),
        assigned("m2", 2, at=4),
        fetched(5),
        committed(7, generation=2, at=9),
        fetched(7, at=12),
    ),
    "copies that differ behind what is committed": (
        copy(1, (0, 11), (4, 12)),
        copy(2, (0, 11), (4, 13)),
    ),
    "offsets that nobody committed for long enough": (
        OffsetsExpire(at=0, after_ms=1_000),
        committed(5, at=500),
        fetched(-1, at=1_600),
        committed(2, at=1_700),
        fetched(2, at=1_800),
    ),
    "a group that was forgotten and begins anew": (
        OffsetsExpire(at=0, after_ms=500_000),
        assigned("m1", 3, at=1),
        committed(5, generation=3, at=500),
        assigned("m2", 1, at=600_000),
        assigned("m2", 3, at=600_100),
        committed(5, generation=3, at=600_200),
    ),
    "copies where they should be": (wanted_on(1, 2), copy(1), copy(2)),
    "nothing at all": (),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_passes(name: str) -> None:
    assert checks_failed(*SOUND[name]) == []


def served(what: str, *, at: int, asked_at: int) -> GuestServed:
    return GuestServed(at=at, guest="g", what=what, asked_at=asked_at)


@pytest.mark.parametrize(
    "event, is_wrong",
    [
        (served("read", at=11_000, asked_at=9_000), False),
        (served("read", at=11_001, asked_at=9_000), True),
        (served("write", at=15_000, asked_at=10_900), False),
        (served("write", at=15_000, asked_at=11_001), True),
        (served("commit", at=15_000, asked_at=11_001), False),
    ],
)
def test_who_has_lost_a_permission_is_not_served(event: GuestServed, is_wrong: bool) -> None:
    taken = PermissionTaken(at=10_000, guest="g", what=event.what if event.what != "commit" else "read")
    given = PermissionGiven(at=20_000, guest="g", what=taken.what)
    later = replace(event, at=25_000, asked_at=24_000)
    history = History()
    for each in (taken, event, given, later):
        history.add(each)
    assert bool(violations(history)) == is_wrong
