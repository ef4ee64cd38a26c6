"""Rules for when a failed query is started again, and when it is given up. The time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RETRIES: Final = 5
OUTAGE_TIMEOUT_S: Final = 3_600.0
FIRST_DELAY_S: Final = 1.0
DELAY_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long a run stays patient with queries that fail and brokers that are away."""

    retries: int = RETRIES
    """How often in a row a run restarts a query that fails while its brokers can be reached."""
    outage_timeout_s: float = OUTAGE_TIMEOUT_S
    """How long a run waits for brokers."""


@dataclass(slots=True)
class Attempts:
    """What has happened to one query since it last finished a batch."""

    limits: RetryLimits
    failures: int = 0
    batch: int = -1
    """The last batch that it has finished."""
    retry_at: float | None = None
    """When it is to be started again; None while it runs, or when it is given up."""
    outage_since: float | None = None
    reason: str = ""
    """Why it failed last."""
    is_given_up: bool = False

    @property
    def is_failing(self) -> bool:
        """A restarted query counts as failing until it has finished a batch: only that shows it is well."""
        return self.is_given_up or self.retry_at is not None or self.failures > 0

    def advanced(self, batch: int) -> None:
        """It has finished a batch: whatever was wrong has passed."""
        if batch > self.batch:
            self.batch = batch
            self.recovered()

    def recovered(self) -> None:
        """It has finished a batch, or ended with nothing left to do."""
        self.failures, self.outage_since = 0, None

    def failed(self, reason: str, now: float, *, is_outage: bool) -> str:
        """Decide to start the query again or to give it up; return the decision in words for the log."""
        self.reason = reason
        if is_outage:
            # This is not the query's fault: it goes on when a broker answers, however often it failed.
            self.outage_since = now if self.outage_since is None else self.outage_since
            self.retry_at = now
            return f"{reason}; it goes on when a broker answers"
        self.failures += 1
        if self.failures > self.limits.retries:
            return self.give_up()
        delay = min(DELAY_MAX_S, FIRST_DELAY_S * 2 ** (self.failures - 1))
        self.retry_at = now + delay
        return f"{reason}; try {self.failures} of {self.limits.retries} follows in {delay:g} s"

    def may_wait(self, now: float) -> bool:
        """Whether to wait for brokers any longer."""
        assert self.outage_since is not None
        return now - self.outage_since < self.limits.outage_timeout_s

    def give_up(self) -> str:
        self.is_given_up, self.retry_at = True, None
        return f"{self.reason}; given up"
