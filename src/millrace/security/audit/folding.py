"""Folds what happens again and again into one event with a count.

The first time is told at once. What is the same within the window after it is counted, and told as one event
when the window ends. So nothing is late that is new, and a client that is refused a thousand times a second
makes two events a minute.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.security.audit.events import Decision, Login

WINDOW_MS: Final = 60_000
KEYS_MAX: Final = 20_000
"""So many different things are counted at once. Others are told each time that they happen."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """What happened again since it was told."""

    what: Decision | Login
    first_ms: int
    last_ms: int
    count: int


class _Window:
    __slots__ = ("count", "end_ms", "first_ms", "last_ms", "what")

    def __init__(self, what: Decision | Login, now_ms: int, window_ms: int) -> None:
        self.what = what
        self.end_ms = now_ms + window_ms
        self.count = 0
        self.first_ms = self.last_ms = now_ms


class Folding:
    """The windows that are open."""

    def __init__(self, window_ms: int = WINDOW_MS, keys_max: int = KEYS_MAX) -> None:
        self._window_ms = window_ms
        self._keys_max = keys_max
        self._windows: dict[Hashable, _Window] = {}
        """In the order in which they end: all are of one length."""

    def __len__(self) -> int:
        return len(self._windows)

    def counts(self, key: Hashable, now_ms: int) -> bool:
        """Whether this was told a moment ago. Then it is counted, and nobody needs to know more of it."""
        window = self._windows.get(key)
        if window is None or now_ms >= window.end_ms:
            return False
        if not window.count:
            window.first_ms = now_ms
        window.count += 1
        window.last_ms = now_ms
        return True

    def told(self, what: Decision | Login, now_ms: int) -> Repeated | None:
        """This is told now: count what is the same from here on. Returns what the window before it has
        counted, if that was not told yet."""
        key = what.key
        before = self._windows.pop(key, None)
        if len(self._windows) < self._keys_max:
            self._windows[key] = _Window(what, now_ms, self._window_ms)
        return None if before is None else _repeated(before)

    def ended(self, now_ms: int) -> Iterator[Repeated]:
        """What the windows have counted that are over by now; they are forgotten."""
        over = []
        for key, window in self._windows.items():
            # A clock that was set back must not keep a window open for hours.
            if window.end_ms - self._window_ms <= now_ms < window.end_ms:
                break
            over.append(key)
        for key in over:
            repeated = _repeated(self._windows.pop(key))
            if repeated is not None:
                yield repeated

    def all(self) -> Iterator[Repeated]:
        """What all windows have counted, at the end."""
        for window in self._windows.values():
            repeated = _repeated(window)
            if repeated is not None:
                yield repeated
        self._windows.clear()


def _repeated(window: _Window) -> Repeated | None:
    if not window.count:
        return None
    return Repeated(window.what, window.first_ms, window.last_ms, window.count)
