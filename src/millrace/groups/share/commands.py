"""What can be asked of share groups, what they answer, and the settings of their membership."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """What counts for the membership of one share group, with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    """The least time between two assignments: many members that join at once cost one or two."""
    size_max: int = 200
    initialize_retry_ms: int = 30_000
    """After how long the state of a partition that could not be prepared is tried again."""
