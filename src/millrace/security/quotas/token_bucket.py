"""How many changes of the cluster somebody may ask for: tokens that come at a rate, and are spent in bursts.

Kafka's rule for `controller_mutation_rate`: what is asked for is granted while there is anything left,
however much it is; after that nothing is, until the debt is paid. Requests of versions that do not know the
refusal are granted always, and wait afterwards.
"""

from __future__ import annotations

import math
from typing import Final

from millrace.security.quotas.rates import KAFKAS_WINDOW, Window

BURST_S: Final = KAFKAS_WINDOW.all_ms / 1000
"""A full bucket holds what comes in so many seconds, where nothing else is set."""


class TokenBucket:
    """Full at first. Times are milliseconds of any clock that does not go back."""

    __slots__ = ("_burst_s", "_rate", "_tokens", "_updated_ms")

    def __init__(self, rate: float, now_ms: int, window: Window = KAFKAS_WINDOW) -> None:
        """`rate`: tokens a second; a full bucket holds what comes in a window."""
        self._burst_s = window.all_ms / 1000
        self._rate = rate
        self._tokens = rate * self._burst_s
        self._updated_ms = now_ms

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def is_full(self, now_ms: int) -> bool:
        """Whether a new bucket would be the same."""
        return self.tokens(now_ms) >= self._rate * self._burst_s

    def change_rate(self, rate: float, now_ms: int) -> None:
        """Another rate from now on. What is left stays, as far as the bucket holds it."""
        self.tokens(now_ms)
        self._rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def tokens(self, now_ms: int) -> float:
        """What is left; less than nothing is a debt."""
        came = self._rate * (now_ms - self._updated_ms) / 1000
        self._tokens = min(self._rate * self._burst_s, self._tokens + came)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, now_ms: int) -> int:
        """Spend tokens if there is no debt, and return 0; or spend nothing and return the ms to wait."""
        throttle_ms = self.throttle_ms(now_ms)
        if throttle_ms == 0:
            self._tokens -= count
        return throttle_ms

    def take_anyway(self, count: float, now_ms: int) -> int:
        """Spend tokens, also on credit; the ms to wait afterwards."""
        self.tokens(now_ms)
        self._tokens -= count
        return self.throttle_ms(now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """How long it takes until there is no debt; 0 if there is none. One of half a millisecond is none: it
        is what rounding leaves."""
        tokens = self.tokens(now_ms)
        return 0 if tokens >= 0 else math.floor(-tokens / self._rate * 1000 + 0.5)
