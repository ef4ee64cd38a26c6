"""How much may still be replicated at a rate: a bucket that fills with time. Rules without I/O; the time of
any steady clock goes in.

A caller may take more than there is, because a batch is never divided: then the bucket is in debt, and
nothing may be taken until time has paid. So the rate holds over time whatever the size of the batches, and
there is always a next moment at which something may be taken.
"""

from __future__ import annotations

from typing import Final

SAVED_UP_S: Final = 1.0
"""The bucket holds what the rate gives in this time: nobody saves up for more than a short burst."""
WAIT_S: Final = 0.1
"""Whoever found the bucket empty waits for what the rate gives in this time, not for every byte."""
UNLIMITED: Final = 2**63 - 1


class ReplicationQuota:
    """A bucket of bytes that fills at a rate: what replication may take in a throttled direction."""

    __slots__ = ("_content", "_filled_at_s", "rate")

    def __init__(self) -> None:
        self.rate = UNLIMITED
        """Bytes a second."""
        self._content = 0.0
        self._filled_at_s = 0.0

    @property
    def is_limited(self) -> bool:
        return self.rate < UNLIMITED

    def set_rate(self, rate: int, now_s: float) -> None:
        """Take another rate from now on; a debt is worth no more than a full bucket of the new one."""
        assert rate > 0, rate
        if rate == self.rate:
            return
        was_limited = self.is_limited
        self._fill(now_s)
        self.rate = rate
        full = rate * SAVED_UP_S
        self._content = max(min(self._content, full), -full) if was_limited else full

    def available(self, now_s: float) -> int:
        """How many bytes may be taken now; 0 in debt."""
        self._fill(now_s)
        return max(int(self._content), 0)

    def take(self, size_bytes: int) -> None:
        self._content -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Give back what was taken and then not used."""
        self._content = min(self._content + size_bytes, self.rate * SAVED_UP_S)

    def wait_s(self, now_s: float) -> float:
        """How long until there is something worth taking."""
        self._fill(now_s)
        return max(self.rate * WAIT_S - self._content, 0.0) / self.rate

    def _fill(self, now_s: float) -> None:
        elapsed_s = now_s - self._filled_at_s
        self._filled_at_s = now_s
        if elapsed_s > 0:
            self._content = min(self._content + elapsed_s * self.rate, self.rate * SAVED_UP_S)
