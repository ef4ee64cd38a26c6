"""Which brokers the store believes in, and since when not: known here exactly, as nobody in a cluster can."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millrace.metadata import records
from millrace.metadata.store import KeyChange


class Registrations:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._host_of: dict[str, str] = {}
        self._gone_at: dict[str, int] = {}

    def add(self, node_id: int, host: str) -> None:
        self._host_of[records.broker_key(node_id)] = host

    def changed(self, changes: Iterable[KeyChange]) -> None:
        """By the store, at the moment of the change."""
        for change in changes:
            host = self._host_of.get(change.key)
            if host is not None:
                if change.value is None:
                    self._gone_at[host] = self._now_ms()
                else:
                    self._gone_at.pop(host, None)

    def gone_at(self, host: str) -> int | None:
        """When a host's broker lost its registration; None while it has one."""
        return self._gone_at.get(host)
