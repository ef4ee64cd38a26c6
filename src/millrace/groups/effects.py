"""Collects what one command leads to, until it becomes a Decision."""

from __future__ import annotations

from collections.abc import Hashable

from millrace.coordinator.decision import (
    CancelTimer,
    Decision,
    Record,
    Reply,
    SetTimer,
    Timer,
    Token,
    Unstored,
)
from millrace.core.errors import MillraceError


class Effects:
    """What the rules add to, step by step, while they decide on one command."""

    __slots__ = ("error", "records", "replies", "response", "timers", "unstored")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.unstored: list[Unstored] = []
        self.timers: list[Timer] = []
        self.replies: list[Reply] = []
        self.response: object | None = None
        self.error: MillraceError | None = None

    def set_timer(self, name: Hashable, delay_ms: int, command: object) -> None:
        self.timers.append(SetTimer(name, delay_ms, command))

    def cancel_timer(self, name: Hashable) -> None:
        self.timers.append(CancelTimer(name))

    def reply(self, token: Token, outcome: object) -> None:
        self.replies.append(Reply(token, outcome))

    def decision(self) -> Decision[object]:
        return Decision(
            records=tuple(self.records),
            unstored=tuple(self.unstored),
            timers=tuple(self.timers),
            replies=tuple(self.replies),
            response=self.response,
            error=self.error,
        )
