"""Knows which brokers are registered in the store, and when each of the others lost its registration:
exactly, as nobody in a cluster can."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millrace.metadata import records
from millrace.metadata.store import KeyChange

HEARD_MS: Final = 1_000
"""Within this time a broker hears that somebody has ended its lease."""


class Registrations:
    """The registrations of all brokers, as the store has them at this moment."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._host_of: dict[str, str] = {}
        self._gone_at: dict[str, int] = {}
        self._lost_count: dict[str, int] = {}
        self._mistaken: dict[str, None] = {}

    def add(self, node_id: int, host: str) -> None:
        self._host_of[records.broker_key(node_id)] = host

    def changed(self, changes: Iterable[KeyChange]) -> None:
        """The store calls this at the moment of a change."""
        for change in changes:
            host = self._host_of.get(change.key)
            if host is not None:
                if change.value is None:
                    self._gone_at[host] = self._now_ms() + (HEARD_MS if host in self._mistaken else 0)
                    self._lost_count[host] = self.lost_count(host) + 1
                else:
                    self._gone_at.pop(host, None)

    def expect_mistakes(self, host: str, *, are_possible: bool) -> None:
        """Others may take this host's broker for dead while it runs, and end its lease early: the broker
        cannot know that before the news from the store has reached it."""
        if are_possible:
            self._mistaken[host] = None
        else:
            self._mistaken.pop(host, None)

    def lost_count(self, host: str) -> int:
        """How often a host's broker has lost its registration, for whatever reason."""
        return self._lost_count.get(host, 0)

    def gone_at(self, host: str) -> int | None:
        """When a host's broker lost its registration; None while it has one."""
        return self._gone_at.get(host)
