"""Fetch sessions: what a client may leave out, and what the broker must notice."""

from __future__ import annotations

import random

import pytest

from millrace.broker.network.fetch_sessions import (
    EVICTABLE_AFTER_MS,
    FetchPlan,
    FetchSessions,
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicIdsDiffer,
)
from millrace.wire.fetch_codec import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic


def request(
    *wanted: tuple[str, int, int],
    session_id: int = 0,
    epoch: int = 0,
    forgotten: tuple[tuple[str, int], ...] = (),
) -> FetchRequest:
    topics = [
        FetchTopic(name, None, [FetchPartition(index, -1, offset, -1, -1, 1024)])
        for name, index, offset in wanted
    ]
    left_out = [ForgottenTopic(name, None, (index,)) for name, index in forgotten]
    return FetchRequest(-1, -1, 500, 1, 1024, 0, session_id, epoch, topics, left_out, "")


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, random.Random(1))


def offsets(plan: FetchPlan) -> list[tuple[str, int, int]]:
    return [(target.topic, target.partition, target.fetch_offset) for target in plan.targets]


def plan(cache: FetchSessions, wanted: FetchRequest, now_ms: int = 0, *, by_id: bool = False) -> FetchPlan:
    return cache.plan(wanted, uses_topic_ids=by_id, now_ms=now_ms)


def test_an_incremental_request_names_only_what_changes() -> None:
    cache = sessions()
    first = plan(cache, request(("a", 0, 5), ("b", 0, 7)))
    assert first.session_id != 0
    assert not first.is_incremental
    second = plan(cache, request(("b", 0, 9), session_id=first.session_id, epoch=1))
    assert second.is_incremental
    assert sorted(offsets(second)) == [("a", 0, 5), ("b", 0, 9)]
    third = plan(cache, request(session_id=first.session_id, epoch=2, forgotten=(("a", 0),)))
    assert offsets(third) == [("b", 0, 9)]


def test_a_request_without_a_session_gets_none() -> None:
    cache = sessions()
    assert plan(cache, request(("a", 0, 0), epoch=-1)).session_id == 0
    assert len(cache) == 0


def test_the_final_epoch_ends_the_session_it_names() -> None:
    cache = sessions()
    begun = plan(cache, request(("a", 0, 0)))
    plan(cache, request(("a", 0, 1), session_id=begun.session_id, epoch=-1))
    with pytest.raises(SessionNotFound):
        plan(cache, request(session_id=begun.session_id, epoch=1))


def test_a_session_exists_only_for_those_who_began_it() -> None:
    """Who guesses its number learns no names from it, and does not end it."""
    cache = sessions()
    begun = cache.plan(request(("a", 0, 5)), uses_topic_ids=False, now_ms=0, owner="alice")
    number = begun.session_id
    for stolen in (request(session_id=number, epoch=1), request(session_id=number, epoch=9)):
        with pytest.raises(SessionNotFound):
            cache.plan(stolen, uses_topic_ids=False, now_ms=0, owner="mallory")
    for ended in (request(("b", 0, 0), session_id=number, epoch=-1), request(session_id=number, epoch=0)):
        cache.plan(ended, uses_topic_ids=False, now_ms=0, owner="mallory")
    own = cache.plan(request(session_id=number, epoch=1), uses_topic_ids=False, now_ms=0, owner="alice")
    assert offsets(own) == [("a", 0, 5)]


def test_a_repeated_or_skipped_epoch_is_refused_and_changes_nothing() -> None:
    cache = sessions()
    begun = plan(cache, request(("a", 0, 0)))
    for epoch in (2, 7):
        with pytest.raises(InvalidSessionEpoch):
            plan(cache, request(("a", 0, 99), session_id=begun.session_id, epoch=epoch))
    assert offsets(plan(cache, request(session_id=begun.session_id, epoch=1))) == [("a", 0, 0)]


def test_a_session_keeps_its_way_to_name_topics() -> None:
    cache = sessions()
    begun = plan(cache, request(("a", 0, 0)))
    with pytest.raises(SessionTopicIdsDiffer):
        plan(cache, request(session_id=begun.session_id, epoch=1), by_id=True)


def test_forgetting_everything_ends_the_session() -> None:
    cache = sessions()
    begun = plan(cache, request(("a", 0, 0)))
    ended = plan(cache, request(session_id=begun.session_id, epoch=1, forgotten=(("a", 0),)))
    assert ended.session_id == 0
    assert len(cache) == 0


def test_the_epoch_wraps_to_one() -> None:
    cache = sessions()
    begun = plan(cache, request(("a", 0, 0)))
    assert begun.session is not None
    begun.session.epoch = 0x7FFF_FFFF
    plan(cache, request(session_id=begun.session_id, epoch=0x7FFF_FFFF))
    assert plan(cache, request(session_id=begun.session_id, epoch=1)).is_incremental


def test_a_full_cache_gives_a_place_only_for_a_stale_or_smaller_session() -> None:
    cache = sessions(1)
    old = plan(cache, request(("a", 0, 0)), now_ms=0)
    assert plan(cache, request(("b", 0, 0), ("b", 1, 0)), now_ms=1000).session_id == 0
    plan(cache, request(session_id=old.session_id, epoch=1), now_ms=EVICTABLE_AFTER_MS)
    larger = plan(cache, request(("b", 0, 0), ("b", 1, 0)), now_ms=EVICTABLE_AFTER_MS + 1)
    assert larger.session_id != 0
    assert cache.evictions == 1
    assert plan(cache, request(("c", 0, 0)), now_ms=EVICTABLE_AFTER_MS + 2).session_id == 0
    assert plan(cache, request(("c", 0, 0)), now_ms=3 * EVICTABLE_AFTER_MS).session_id != 0


def test_a_session_goes_on_for_its_only_partition() -> None:
    known = sessions()
    plan = known.plan(request(("t", 0, 5)), uses_topic_ids=False, now_ms=1)
    (target,), session = plan.targets, plan.session
    assert session is not None
    assert not known.is_next(session, 2, target), "another epoch"
    assert known.is_next(session, 1, target)
    session.used(2)
    assert (session.epoch, session.last_used_ms) == (2, 2)
    assert not known.is_next(session, 1, target), "an epoch of before"

    both = request(("t", 1, 0), session_id=session.session_id, epoch=2)
    known.plan(both, uses_topic_ids=False, now_ms=3)
    assert not known.is_next(session, 3, target), "no longer the only partition"

    known.plan(request(session_id=session.session_id, epoch=-1), uses_topic_ids=False, now_ms=5)
    assert not known.is_next(session, 3, target), "ended"
