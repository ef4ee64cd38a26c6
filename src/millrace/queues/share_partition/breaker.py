"""Stops delivery for a while when too many deliveries end as dead letters: what consumers depend on is down,
and going on would move the whole queue into its dead letters."""

from __future__ import annotations

from typing import Final

from millrace.queues.settings import ShareSettings

# So few failures say nothing of a share.
_GIVEN_UP_MIN: Final = 10


class Breaker:
    """Counts how deliveries end, in two halves of the window, of which the older one is forgotten."""

    __slots__ = (
        "_ended",
        "_ended_before",
        "_given_up",
        "_given_up_before",
        "_half_began_ms",
        "open_until_ms",
    )

    def __init__(self) -> None:
        self.open_until_ms = 0
        """Until when nothing is delivered; 0 while all is well."""
        self._half_began_ms = 0
        self._ended = self._ended_before = 0
        self._given_up = self._given_up_before = 0

    def count(self, settings: ShareSettings, *, ended: int, given_up: int, now_ms: int) -> bool:
        """So many records' deliveries ended, so many of them were given up; whether these are too many."""
        self._move_on(settings.breaker_window_ms, now_ms)
        self._ended += ended
        self._given_up += given_up
        all_given_up = self._given_up + self._given_up_before
        if all_given_up < _GIVEN_UP_MIN:
            return False
        if all_given_up <= settings.breaker_ratio * (self._ended + self._ended_before):
            return False
        self.open_until_ms = now_ms + settings.breaker_window_ms
        self._forget()
        return True

    def _move_on(self, window_ms: int, now_ms: int) -> None:
        passed_ms = now_ms - self._half_began_ms
        if passed_ms * 2 < window_ms:
            return
        if passed_ms >= window_ms:
            self._forget()
        else:
            self._ended_before, self._given_up_before = self._ended, self._given_up
            self._ended = self._given_up = 0
        self._half_began_ms = now_ms

    def _forget(self) -> None:
        self._ended = self._ended_before = 0
        self._given_up = self._given_up_before = 0
