"""What a share group's settings say of its share partitions. The names of the settings are in
`metadata/config_definitions/`; whoever reads them by name makes one of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """The settings of one share group, as they count at the moment."""

    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    record_locks_max: int = 2_000
    """How many records of one partition may be acquired at once, by all members."""
    member_record_locks_max: int = 0
    """How many records of one partition one member may hold at once; 0 for no limit of its own."""
    auto_offset_reset: str = "latest"
    """`latest`, `earliest` or `by_duration:` and an ISO-8601 duration."""
    reads_committed: bool = False
    may_renew: bool = True
    retry_backoff_ms: int = 0
    """How long a record waits before its second delivery; doubled for each later one. 0 for not at all."""
    retry_backoff_max_ms: int = 300_000
    counts_failures_only: bool = False
    """Whether a record that its member releases has that delivery taken off its count."""
    is_ordered_by_key: bool = False
    record_max_age_ms: int = 0
    """Older records are not delivered; 0 for no limit."""
    is_paused: bool = False
    dead_letter_topic: str = ""
    """Empty: records that are given up are archived and nothing more."""
    copies_dead_letters: bool = True
    """Whether a dead letter has the record's key, value and headers, or only says where the record is."""
    breaker_ratio: float = 0.0
    """Which share of the deliveries that ended in the window may be dead letters before delivery pauses; 0
    for any."""
    breaker_window_ms: int = 60_000
