"""How fast somebody has been of late, and how long they have to wait: Kafka's rate over samples of a second.

A rate is the sum of the samples of the last eleven seconds over the time that they cover, which counts as ten
whole seconds at least: so a burst is allowed at the start. Values are recorded first and judged then. Kafka
keeps a sample for as long as its last event is in the window.

Times are milliseconds of any clock that does not go back, given by the caller.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

SAMPLES: Final = 11
"""Ten whole ones and the present one."""
SAMPLE_MS: Final = 1_000
WINDOW_MS: Final = SAMPLES * SAMPLE_MS


class Window(NamedTuple):
    """Over which time rates are taken: so many samples, of which the last is the present one."""

    samples: int = SAMPLES
    """`quota.window.num`."""
    sample_ms: int = SAMPLE_MS
    """`quota.window.size.seconds`."""

    @property
    def whole_ms(self) -> int:
        """What the samples before the present one cover; one at least."""
        return max(self.samples - 1, 1) * self.sample_ms

    @property
    def all_ms(self) -> int:
        return self.samples * self.sample_ms


KAFKAS_WINDOW: Final = Window()


class Rate:
    """What was counted of late. The usual call touches the present sample alone, whatever the window
    holds."""

    __slots__ = (
        "_all_ms",
        "_counts",
        "_current",
        "_lasts",
        "_oldest_ms",
        "_purge_ms",
        "_sample_ms",
        "_samples",
        "_starts",
        "_sum",
        "_whole_ms",
    )

    def __init__(self, window: Window = KAFKAS_WINDOW) -> None:
        self._samples, self._sample_ms = window
        self._whole_ms = window.whole_ms
        self._all_ms = window.all_ms
        self._starts: list[int] = []
        self._lasts: list[int] = []
        """When something was last recorded in each sample."""
        self._counts: list[float] = []
        self._current = 0
        self._sum = 0.0
        self._oldest_ms = 0
        """When the oldest sample began."""
        self._purge_ms = 0
        """No sample is out of date before this moment."""

    def record(self, value: float, now_ms: int) -> None:
        """Count something. A negative value takes back what was recorded and did not happen, as when a fetch
        is answered without records."""
        if not self._starts:
            self._append(now_ms)
        if now_ms - self._starts[self._current] >= self._sample_ms:
            self._advance(now_ms)
        current = self._current
        self._counts[current] += value
        self._lasts[current] = now_ms
        self._sum += value

    @property
    def sum(self) -> float:
        """What was counted, as of the last question."""
        return self._sum

    def per_second(self, now_ms: int) -> float:
        window_ms = self.window_ms(now_ms)
        return self._sum / window_ms * 1000

    def window_ms(self, now_ms: int) -> int:
        """The time that the sum stands for."""
        if not self._starts:
            self._append(now_ms)
        if now_ms >= self._purge_ms:
            self._purge(now_ms)
        elapsed_ms = now_ms - self._oldest_ms
        if elapsed_ms < self._whole_ms:
            # Seconds that were not measured count as empty ones.
            elapsed_ms += self._whole_ms - elapsed_ms // self._sample_ms * self._sample_ms
        return elapsed_ms

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long to wait until the rate is down to the bound, if nothing more comes; 0 if it is."""
        window_ms = self.window_ms(now_ms)
        observed = self._sum / window_ms * 1000
        if observed <= bound:
            return 0
        return math.floor((observed - bound) / bound * window_ms + 0.5)

    def room(self, bound: float, now_ms: int) -> tuple[float, int]:
        """What can still be recorded within the bound, and until when that is sure: the present sample ends
        then, or an old one stops to count. Time alone only makes it more."""
        room = bound * self.window_ms(now_ms) / 1000 - self._sum
        return room, min(self._starts[self._current] + self._sample_ms, self._purge_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Whether nothing that was recorded counts any more."""
        return not self._lasts or now_ms - self._lasts[self._current] >= self._all_ms

    def _append(self, now_ms: int) -> None:
        self._starts.append(now_ms)
        self._lasts.append(now_ms)
        self._counts.append(0.0)
        if len(self._starts) == 1:
            self._oldest_ms = now_ms
            self._purge_ms = now_ms + self._all_ms

    def _advance(self, now_ms: int) -> None:
        """Begin the next sample. There is one more than counts: the oldest may reach into the window."""
        self._current = (self._current + 1) % (self._samples + 1)
        if self._current == len(self._starts):
            self._append(now_ms)
        else:
            self._reset(self._current, now_ms)
        self._look_over()

    def _purge(self, now_ms: int) -> None:
        for place, last_ms in enumerate(self._lasts):
            if now_ms - last_ms >= self._all_ms:
                self._reset(place, now_ms)
        self._look_over()

    def _reset(self, place: int, now_ms: int) -> None:
        self._starts[place] = self._lasts[place] = now_ms
        self._counts[place] = 0.0

    def _look_over(self) -> None:
        self._oldest_ms = min(self._starts)
        self._purge_ms = min(self._lasts) + self._all_ms
        # Anew from its parts, so that no rounding of additions and subtractions stays for ever.
        self._sum = math.fsum(self._counts)


def largest_unthrottled(bound: float, window: Window = KAFKAS_WINDOW) -> float:
    """The most that can be recorded at once without being throttled for sure: what a fetch may take."""
    return bound * window.whole_ms / 1000


def bounded_throttle_ms(throttle_ms: int, window: Window = KAFKAS_WINDOW) -> int:
    """At most a sample at a time, as Kafka has it for request time and for connections."""
    return min(throttle_ms, window.sample_ms)


def percentage(seconds: float) -> float:
    """Time spent for a client, as what is recorded against a `request_percentage`."""
    return seconds * 100
