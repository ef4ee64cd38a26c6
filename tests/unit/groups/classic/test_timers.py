"""A classic group's timers: one of each name, and the time that a new group waits for more members."""

from __future__ import annotations

from millrace.coordinator.decision import CancelTimer, SetTimer
from millrace.groups.classic.timers import GroupTimers
from millrace.groups.commands import InitialDelayPassed, JoinTimedOut, MemberTimedOut, SyncTimedOut
from millrace.groups.effects import Effects


def test_what_ends_a_timer_has_its_name() -> None:
    timers, out = GroupTimers("g"), Effects()
    session = timers.session("m", 10)
    timers.await_joins(20, out)
    timers.await_syncs(3, 30, out)
    timers.end_session("m", out)
    timers.end_joins(out)
    timers.end_syncs(out)
    join, sync, *ended = out.timers
    assert session == SetTimer(session.name, 10, MemberTimedOut("g", "m"))
    assert join == SetTimer(join.name, 20, JoinTimedOut("g"))
    assert sync == SetTimer(sync.name, 30, SyncTimedOut("g", 3))
    assert ended == [CancelTimer(session.name), CancelTimer(join.name), CancelTimer(sync.name)]
    assert len({session.name, join.name, sync.name, timers.session("n", 10).name}) == 4
    assert GroupTimers("h").session("m", 10).name != session.name


def test_a_new_group_waits_in_steps_and_never_longer_than_its_members_wait() -> None:
    timers, out = GroupTimers("g"), Effects()
    timers.await_first_joins(3_000, 7_000, out)
    timers.await_first_joins(3_000, 1_000, out)
    first, last = out.timers
    assert isinstance(first, SetTimer)
    assert isinstance(last, SetTimer)
    assert first.name == last.name
    assert (first.delay_ms, first.command) == (3_000, InitialDelayPassed("g", 3_000, 4_000))
    assert (last.delay_ms, last.command) == (1_000, InitialDelayPassed("g", 1_000, 0))
