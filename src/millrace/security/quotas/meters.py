"""The rates of all clients of a broker, each measured once for those who share it.

A connection asks for its meters once and keeps them for as long as the table of quotas stays the same; then a
request costs one call. Clients without a limit have no meter and cost nothing.
"""

from __future__ import annotations

from typing import Final

from millrace.security.quotas.keys import CONTROLLER_MUTATION_RATE, REQUEST_PERCENTAGE
from millrace.security.quotas.precedence import NO_QUOTAS, Bucket, Limit, QuotaTable, share
from millrace.security.quotas.rates import Rate, bounded_throttle_ms, largest_unthrottled
from millrace.security.quotas.token_bucket import TokenBucket

METERS_MAX: Final = 50_000
"""Beyond it those are forgotten that were silent for a window: what they recorded counts no more."""


class Meter:
    """One measured rate with its bound."""

    __slots__ = ("_is_capped", "_rate", "bound")

    def __init__(self, bound: float, *, is_capped: bool) -> None:
        self.bound = bound
        self._is_capped = is_capped
        self._rate = Rate()

    @property
    def largest_unthrottled(self) -> float:
        """What a fetch may take at once: more would be throttled for sure, and could never be had."""
        return largest_unthrottled(self.bound)

    def record(self, value: float, now_ms: int) -> int:
        """Count something, and return for how many ms the client has to be silent; 0 within the bound."""
        rate = self._rate
        rate.record(value, now_ms)
        throttle_ms = rate.throttle_ms(self.bound, now_ms)
        return bounded_throttle_ms(throttle_ms) if self._is_capped else throttle_ms

    def take_back(self, value: float, now_ms: int) -> None:
        """What was recorded did not happen: the answer goes without its records."""
        self._rate.record(-value, now_ms)

    def is_silent(self, now_ms: int) -> bool:
        return self._rate.is_silent(now_ms)


class Meters:
    """All meters of a broker."""

    def __init__(self) -> None:
        self.table: QuotaTable = NO_QUOTAS
        """Whoever kept a meter asks again when this is another object."""
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
            bucket = self._buckets[limit.bucket] = TokenBucket(rate, now_ms)
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
            meter = self._meters[place] = Meter(bound, is_capped=key == REQUEST_PERCENTAGE)
        meter.bound = bound
        return meter
