"""The rates of all clients of a broker, each measured once for those who share it.

A connection asks for its meters once and keeps them for as long as the table of quotas stays the same; then a
request costs one call. Clients without a limit have no meter and cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.security.quotas.keys import CONTROLLER_MUTATION_RATE, REQUEST_PERCENTAGE
from millrace.security.quotas.precedence import NO_QUOTAS, Bucket, Limit, QuotaTable, share
from millrace.security.quotas.rates import (
    KAFKAS_WINDOW,
    Rate,
    Window,
    bounded_throttle_ms,
    largest_unthrottled,
)
from millrace.security.quotas.token_bucket import TokenBucket

METERS_MAX: Final = 50_000
"""Beyond it those are forgotten that were silent for a window: what they recorded counts no more."""


class Meter:
    """One measured rate with its bound.

    The rate is judged when it can have come to its bound, and at the end of every sample. In between what is
    recorded is taken from the room that was left, which is the same to the byte and costs less."""

    __slots__ = ("_is_capped", "_rate", "_window", "bound", "granted", "last_ms", "noted", "sure_until_ms")

    def __init__(self, bound: float, *, is_capped: bool, window: Window = KAFKAS_WINDOW) -> None:
        self.bound = bound
        self._is_capped = is_capped
        self._window = window
        self._rate = Rate(window)
        self.granted = 0.0
        """So much was within the bound when it was judged last."""
        self.noted = 0.0
        """What was taken of that and is not yet in the rate, the last of it at `last_ms`."""
        self.last_ms = 0.0
        self.sure_until_ms = 0

    @property
    def largest_unthrottled(self) -> float:
        """What a fetch may take at once: more would be throttled for sure, and could never be had."""
        return largest_unthrottled(self.bound, self._window)

    def has_room(self, value: float, now_ms: float) -> bool:
        """Whether something is within the bound for sure; if so it is counted."""
        noted = self.noted + value
        if noted > self.granted or now_ms >= self.sure_until_ms:
            return False
        self.noted = noted
        self.last_ms = now_ms
        return True

    @property
    def room(self) -> float:
        """What is within the bound for sure, until `sure_until_ms`."""
        return self.granted - self.noted

    def record(self, value: float, now_ms: int) -> int:
        """Count something, and return for how many ms the client has to be silent; 0 within the bound."""
        if self.has_room(value, now_ms):
            return 0
        self._note()
        rate = self._rate
        rate.record(value, now_ms)
        throttle_ms = rate.throttle_ms(self.bound, now_ms)
        self.granted, self.sure_until_ms = rate.room(self.bound, now_ms)
        return bounded_throttle_ms(throttle_ms, self._window) if self._is_capped else throttle_ms

    def take_back(self, value: float, now_ms: int) -> None:
        """What was recorded did not happen: the answer goes without its records."""
        self._note()
        self._rate.record(-value, now_ms)

    def change_bound(self, bound: float) -> None:
        """Judge by another bound from now on. What was recorded stays."""
        if bound != self.bound:
            self._note()
            self.bound = bound

    @property
    def sum(self) -> float:
        """All that counts at present."""
        return self._rate.sum + self.noted

    def per_second(self, now_ms: int) -> float:
        """The rate of this moment."""
        self._note()
        return self._rate.per_second(now_ms)

    def is_silent(self, now_ms: int) -> bool:
        self._note()
        return self._rate.is_silent(now_ms)

    def _note(self) -> None:
        """Enter into the rate what was noted, and judge anew next time."""
        if self.noted:
            self._rate.record(self.noted, int(self.last_ms))
            self.noted = 0.0
        self.sure_until_ms = 0


class Meters:
    """All meters of a broker."""

    def __init__(self, window: Window = KAFKAS_WINDOW, mutations_window: Window = KAFKAS_WINDOW) -> None:
        """`mutations_window`: how much of a `controller_mutation_rate` can be saved up."""
        self.table: QuotaTable = NO_QUOTAS
        """Whoever kept a meter asks again when this is another object."""
        self._window = window
        self._mutations_window = mutations_window
        self._brokers = 1
        self._meters: dict[tuple[str, Bucket], Meter] = {}
        self._buckets: dict[Bucket, TokenBucket] = {}

    def replace(self, table: QuotaTable, *, brokers: int = 1) -> None:
        """Count by these limits from now on. `brokers`: among how many each limit is divided, where limits
        are for the cluster. What was recorded stays."""
        self.table = table
        self._brokers = brokers

    def of_client(self, key: str, user: str, client_id: str, now_ms: int) -> Meter | None:
        """What a client's requests are to be recorded with, or None if nothing limits them."""
        return self._meter(key, self.table.limit(key, user, client_id), now_ms)

    def of_tenant(self, key: str, tenant: str, now_ms: int) -> Meter | None:
        """The same for all clients of a tenant together."""
        return self._meter(key, self.table.tenant_limit(key, tenant), now_ms)

    def mutations_of(self, user: str, client_id: str, now_ms: int) -> TokenBucket | None:
        """What a client's changes of the cluster are taken from, or None if nothing limits them. It is asked
        for anew for every request."""
        limit = self.table.limit(CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        rate = share(limit.bound, self._brokers)
        bucket = self._buckets.get(limit.bucket)
        if bucket is None:
            if len(self._buckets) >= METERS_MAX:
                self._buckets = {
                    place: found for place, found in self._buckets.items() if not found.is_full(now_ms)
                }
            bucket = self._buckets[limit.bucket] = TokenBucket(rate, now_ms, self._mutations_window)
        elif bucket.rate != rate:
            bucket.change_rate(rate, now_ms)
        return bucket

    def _meter(self, key: str, limit: Limit | None, now_ms: int) -> Meter | None:
        if limit is None:
            return None
        bound = share(limit.bound, self._brokers)
        place = (key, limit.bucket)
        meter = self._meters.get(place)
        if meter is None:
            if len(self._meters) >= METERS_MAX:
                self._meters = {
                    kept: found for kept, found in self._meters.items() if not found.is_silent(now_ms)
                }
            meter = Meter(bound, is_capped=key == REQUEST_PERCENTAGE, window=self._window)
            self._meters[place] = meter
        meter.change_bound(bound)
        return meter

    def figures(self, now_ms: int) -> Iterator[tuple[str, Bucket, float, float]]:
        """What is measured, who shares it, the rate of this moment and its bound; of those who were
        not silent, for metrics."""
        for (key, bucket), meter in self._meters.items():
            if not meter.is_silent(now_ms):
                yield key, bucket, meter.per_second(now_ms), meter.bound
