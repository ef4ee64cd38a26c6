"""Groups without a loop: a machine, timers that a test moves on, and a log in memory that can be replayed."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

from millrace.coordinator.decision import Decision, SetTimer
from millrace.core.errors import MillraceError
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.commands import GroupSettings, Join, Joined, JoinedMember, Protocol, Sync
from millrace.groups.errors import MemberIdRequired
from millrace.groups.machine import GroupMachine
from millrace.groups.records import GroupRecordCodec
from tests.unit.groups.applied import decided

NOW_MS = 1_700_000_000_000
CODEC = GroupRecordCodec()


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that wants these topics (version 0)."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\0\0\0\0"


class World:
    """One partition of `__consumer_offsets`, its timers and those who wait."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.machine = GroupMachine(self.settings)
        self.now_ms = NOW_MS
        self.outcomes: dict[int, Any] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self._tokens = itertools.count(1)
        self._ids = itertools.count(1)
        self._timers: dict[Hashable, tuple[int, int, object]] = {}
        self._timer_numbers = itertools.count()
        self._carry_out(self.machine.resume(self.now_ms), None)

    def submit(self, command: object) -> int:
        """Returns the token under which the outcome is or will be found."""
        token = next(self._tokens)
        self._carry_out(decided(self.machine, command, self.now_ms, token), token)
        return token

    def ask(self, command: object) -> Any:
        """The outcome of a command that is answered at once."""
        return self.outcomes[self.submit(command)]

    def is_waiting(self, token: int) -> bool:
        return token not in self.outcomes

    def advance(self, ms: int) -> None:
        """Let time pass; timers fire in their order."""
        end_ms = self.now_ms + ms
        while due := [each for each in self._timers.items() if each[1][0] <= end_ms]:
            name, (deadline, _, command) = min(due, key=lambda each: each[1][:2])
            del self._timers[name]
            self.now_ms = max(self.now_ms, deadline)
            self._carry_out(decided(self.machine, command, self.now_ms, 0), None)
        self.now_ms = end_ms

    def _carry_out(self, decision: Decision[object], token: int | None) -> None:
        for record in decision.records:
            encoded = CODEC.encode(record)
            self.log.append(encoded)
            decoded = CODEC.decode(*encoded)
            assert decoded == record, (decoded, record)
            self.machine.apply(record)
        for unstored in decision.unstored:
            self.machine.apply(unstored)
        for timer in decision.timers:
            if isinstance(timer, SetTimer):
                deadline = self.now_ms + timer.delay_ms
                self._timers[timer.name] = (deadline, next(self._timer_numbers), timer.command)
            else:
                self._timers.pop(timer.name, None)
        if token is not None:
            outcome = decision.error if decision.error is not None else decision.response
            if outcome is not None:
                self.outcomes[token] = outcome
        for reply in decision.replies:
            assert reply.token not in self.outcomes, reply
            self.outcomes[reply.token] = reply.outcome

    # What a restart would see.

    def replayed(self) -> GroupMachine:
        machine = GroupMachine(self.settings)
        for key, value in self.log:
            record = CODEC.decode(key, value)
            assert record is not None
            machine.apply(record)
        return machine

    def restart(self) -> None:
        """As after a crash: only the log is left."""
        self.machine = self.replayed()
        self._timers.clear()
        self._carry_out(self.machine.resume(self.now_ms), None)

    # Shorthands.

    def group(self, group_id: str = "g") -> ClassicGroup:
        group = self.machine.groups[group_id]
        assert isinstance(group, ClassicGroup), group
        return group

    def new_id(self, prefix: str = "c") -> str:
        return f"{prefix}-{next(self._ids)}"

    def join_command(self, member_id: str = "", **overrides: Any) -> Join:
        values: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": (Protocol("range", subscription("t")),),
            "new_member_id": self.new_id() if not member_id else "",
        }
        return Join(**{**values, **overrides})

    def join(self, member_id: str = "", **overrides: Any) -> int:
        """Join as clients do: a new member asks twice."""
        token = self.submit(self.join_command(member_id, **overrides))
        outcome = self.outcomes.get(token)
        if isinstance(outcome, MemberIdRequired):
            token = self.submit(self.join_command(outcome.member_id, **overrides))
        return token

    def joined(self, token: int) -> Joined:
        outcome = self.outcomes[token]
        assert isinstance(outcome, Joined), outcome
        return outcome

    def sync(self, joined: Joined, assignments: dict[str, bytes] | None = None) -> int:
        given = {} if assignments is None else assignments
        if joined.members and assignments is None:
            given = {member.member_id: member.member_id.encode() for member in joined.members}
        return self.submit(
            Sync(
                group_id="g",
                generation=joined.generation,
                member_id=joined.member_id,
                assignments=tuple(given.items()),
            )
        )

    def make_stable(self, *tokens: int) -> list[Joined]:
        """Let the delay of a new group pass and everybody sync; the group is Stable then."""
        self.advance(0)
        members = [self.joined(token) for token in tokens]
        synced = [self.sync(member) for member in members]
        assert not any(self.is_waiting(token) for token in synced)
        return members


def error_of(outcome: object) -> type[MillraceError] | None:
    return type(outcome) if isinstance(outcome, MillraceError) else None


def members_of(joined: Joined) -> list[str]:
    return [member.member_id for member in joined.members]


def stored_state(machine: GroupMachine) -> dict[str, Any]:
    """What must survive a restart, in a form that can be compared."""
    return {
        "groups": {
            group_id: group.stored
            for group_id, group in sorted(machine.groups.items())
            if isinstance(group, ClassicGroup) and group.stored is not None
        },
        "offsets": {
            (group_id, topic, partition): committed
            for group_id in sorted(machine.offsets.by_group)
            for topic, partition, committed in machine.offsets.of_group(group_id)
        },
    }


__all__ = ["JoinedMember", "World", "error_of", "members_of", "stored_state", "subscription"]
