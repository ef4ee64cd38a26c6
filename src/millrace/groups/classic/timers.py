"""The timers of one classic group: their names, and the command that each gives when it fires."""

from __future__ import annotations

from millrace.coordinator.decision import SetTimer
from millrace.groups.commands import InitialDelayPassed, JoinTimedOut, MemberTimedOut, SyncTimedOut
from millrace.groups.effects import Effects


class GroupTimers:
    """Sets and cancels timers. A new one replaces the one of its name, so each runs at most once."""

    __slots__ = ("_group_id", "_join", "_sync")

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._join = ("join", group_id)
        self._sync = ("sync", group_id)

    # A member must show itself within its session.

    def session(self, member_id: str, timeout_ms: int) -> SetTimer:
        name = ("session", self._group_id, member_id)
        return SetTimer(name, timeout_ms, MemberTimedOut(self._group_id, member_id))

    def end_session(self, member_id: str, out: Effects) -> None:
        out.cancel_timer(("session", self._group_id, member_id))

    # Members must join the next generation.

    def await_first_joins(self, delay_ms: int, timeout_ms: int, out: Effects) -> None:
        """Let a new group wait a little for others, and again while they come, up to `timeout_ms`."""
        delay_ms = min(delay_ms, timeout_ms)
        command = InitialDelayPassed(self._group_id, delay_ms, max(timeout_ms - delay_ms, 0))
        out.set_timer(self._join, delay_ms, command)

    def await_joins(self, timeout_ms: int, out: Effects) -> None:
        out.set_timer(self._join, timeout_ms, JoinTimedOut(self._group_id))

    def end_joins(self, out: Effects) -> None:
        out.cancel_timer(self._join)

    # Members must ask for their part of the assignment.

    def await_syncs(self, generation: int, timeout_ms: int, out: Effects) -> None:
        out.set_timer(self._sync, timeout_ms, SyncTimedOut(self._group_id, generation))

    def end_syncs(self, out: Effects) -> None:
        out.cancel_timer(self._sync)
