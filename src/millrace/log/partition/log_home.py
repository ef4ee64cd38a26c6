"""What a log asks of the data directory that it lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millrace.log.disk.volume import Volume
from millrace.log.errors import StorageError

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog


class LogHome(Protocol):
    """What a log needs from the directory it lives in."""

    volume: Volume
    path: str
    offline_reason: str | None
    unread_cache_bytes: int | None
    """How much of the end of a log that nobody reads stays in the page cache; None for all of it."""
    quarantined_count: int

    def wall_ms(self) -> int: ...

    def roll_jitter_ms(self, jitter_ms_max: int) -> int: ...

    def mark_dirty(self, log: PartitionLog) -> None:
        """Note that the log has data that is not flushed."""

    def fence(self, reason: str) -> None:
        """Let no log in here take writes any more, because the disk failed."""

    def write_refused(self, error: StorageError) -> None:
        """Decide what follows from a write that failed, for good or for a while."""

    def remove_later(self, paths: list[str], delay_ms: int) -> None: ...

    def damage_found(self, log: PartitionLog) -> None:
        """Note that something in the log went into quarantine just now: another replica may have it whole."""

    async def save_log_start_offsets(self) -> None: ...

    async def lower_recovery_point(self, log: PartitionLog) -> None:
        """Save the recovery point after a cut: what takes the place of flushed records is not flushed."""
