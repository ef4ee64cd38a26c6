"""The leases of a store that lives in this process. They end by the loop's time, and with the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace.metadata.errors import LeaseExpired
from millrace.metadata.store import LeaseId


class LeaseTable:
    """The leases of a store without an etcd: each ends by itself unless its holder renews it."""

    def __init__(self, on_end: Callable[[LeaseId], None]) -> None:
        self._on_end = on_end
        self._last_id = 0
        self._leases: dict[LeaseId, tuple[int, asyncio.TimerHandle]] = {}

    def grant(self, ttl_ms: int) -> LeaseId:
        assert ttl_ms > 0, ttl_ms
        self._last_id += 1
        lease_id = LeaseId(self._last_id)
        self._leases[lease_id] = (ttl_ms, self._timer(lease_id, ttl_ms))
        return lease_id

    def keep_alive(self, lease_id: LeaseId) -> int:
        self.check(lease_id)
        ttl_ms, timer = self._leases[lease_id]
        timer.cancel()
        self._leases[lease_id] = (ttl_ms, self._timer(lease_id, ttl_ms))
        return ttl_ms

    def check(self, lease_id: LeaseId | None) -> None:
        """Raise LeaseExpired unless the lease is alive, or there is none."""
        if lease_id is not None and lease_id not in self._leases:
            raise LeaseExpired(lease_id)

    def end(self, lease_id: LeaseId) -> bool:
        """Forget a lease without calling `on_end`; returns whether it was alive."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return False
        lease[1].cancel()
        return True

    def close(self) -> None:
        for _, timer in self._leases.values():
            timer.cancel()
        self._leases.clear()

    def _timer(self, lease_id: LeaseId, ttl_ms: int) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(ttl_ms / 1000, self._expire, lease_id)

    def _expire(self, lease_id: LeaseId) -> None:
        if self.end(lease_id):
            self._on_end(lease_id)
