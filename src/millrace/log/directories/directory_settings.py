"""How a data directory does its background work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """How often the background work is done, and how much of it at once."""

    flush_interval_ms: int = 1000
    checkpoint_interval_ms: int = 60_000
    high_watermark_interval_ms: int = 5_000
    recovery_threads: int = 2
    """How many logs are checked at the same time at the start."""
    unread_cache_bytes: int | None = None
    """How much of the end of each log that nobody reads stays in the page cache; None leaves it to the
    system."""
    gives_up_unwritable: bool = False
    """Whether a file system that refuses writes takes the directory offline for good. Where others can lead,
    they should; alone it is better to wait until it is writable again."""
