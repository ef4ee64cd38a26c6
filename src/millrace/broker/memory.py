"""A bound on the bytes of requests that the broker holds at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class MemoryBudget:
    """Grants bytes in order of arrival; who does not get them now is called back when they are there."""

    __slots__ = ("_limit_bytes", "_waiting", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self, size_bytes: int) -> bool:
        """Take bytes if the budget has them. An unused budget grants any size, or a large frame would wait
        forever."""
        if self._waiting or not self._has_room(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    def wait(self, size_bytes: int, granted: Callable[[], None]) -> None:
        """Take bytes as soon as they are free, then call `granted`."""
        self._waiting.append((size_bytes, granted))

    def stop_waiting(self, granted: Callable[[], None]) -> None:
        """Withdraw a wait, for a connection that ends; without one, do nothing."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != granted)
        self._grant()

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, (self.used_bytes, size_bytes)
        if self._waiting:
            self._grant()

    def _has_room(self, size_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self._limit_bytes

    def _grant(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            self.used_bytes += size_bytes
            granted()
