"""A bound on the bytes that the broker holds at once for its clients: requests that are not complete, and
answers that are ready and wait for an earlier answer of their connection.

A request waits for memory. An answer cannot: it is there already, so it is counted, and the connection reads
no more requests until it has sent what it holds. It can always do that, since what its first answer waits for
is never another request of the same connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

HELD_SHARE_BYTES: Final = 1024 * 1024
"""What one connection may hold in answers before its next requests wait."""
HELD_PART: Final = 2
"""Answers take one part in so many of the budget: clients that never finish their first request shall not
keep others from sending."""
COUNTED_MIN_BYTES: Final = 1024
"""Smaller answers are bounded well enough by their number, and come too often to be counted."""
AT_ONCE_MIN_BYTES: Final = 1024
"""An answer of this size does not wait to be sent together with others."""
OWN_BUFFER_MIN_BYTES: Final = 4 * 1024
OWN_BUFFER_KEEP_BYTES: Final = 64 * 1024
"""A connection that sends frames larger than this keeps its own buffer between them."""


def own_rooms(left: int, size: int | None) -> tuple[int, int]:
    """How large the buffer must be of a frame of which `left` bytes are there, among them its `size`; and how
    large a new one is to be."""
    needed = OWN_BUFFER_MIN_BYTES
    if size is not None:
        # Twice of what has arrived: a frame that claims to be large must prove it.
        needed = min(size + 4, max(2 * left, OWN_BUFFER_MIN_BYTES))
    needed = max(needed, left)
    room = max(needed, left + 1)
    if room > OWN_BUFFER_KEEP_BYTES:
        # The next large frame is rarely of the same size to the byte, and should fit as well.
        room = -(-room // OWN_BUFFER_KEEP_BYTES) * OWN_BUFFER_KEEP_BYTES
    return needed, room


class MemoryBudget:
    """Grants bytes in order of arrival, and calls back whoever has to wait for them."""

    __slots__ = ("_limit_bytes", "_waiting", "held_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self.held_bytes = 0
        """The part of them that are answers."""
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

    def hold(self, size_bytes: int, held_by_connection: int) -> bool:
        """Count an answer that has to wait; whether its connection should make no more of them."""
        self.used_bytes += size_bytes
        self.held_bytes += size_bytes
        return self._is_too_much(held_by_connection)

    def let_go(self, size_bytes: int, held_by_connection: int) -> bool:
        """Answers have left; whether the connection still holds too much."""
        self.held_bytes -= size_bytes
        self.give_back(size_bytes)
        return self._is_too_much(held_by_connection)

    def _is_too_much(self, held_by_connection: int) -> bool:
        if held_by_connection >= HELD_SHARE_BYTES:
            return True
        return held_by_connection > 0 and self.held_bytes * HELD_PART >= self._limit_bytes

    def _has_room(self, size_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self._limit_bytes

    def _grant(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            self.used_bytes += size_bytes
            granted()


def answer_bytes(answer: bytes | Sequence[object]) -> int:
    """The memory that an answer takes, as far as it is counted; slices of files take none."""
    if isinstance(answer, bytes):
        size_bytes = len(answer)
    else:
        size_bytes = sum(len(chunk) for chunk in answer if isinstance(chunk, bytes))
    return size_bytes if size_bytes >= COUNTED_MIN_BYTES else 0
