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
        """The log has data that is not flushed."""

    def fence(self, reason: str) -> None:
        """The disk failed: no log in here takes writes any more."""

    def write_refused(self, error: StorageError) -> None:
        """A write failed, for good or for a while: the home decides what follows from it."""

    def remove_later(self, paths: list[str], delay_ms: int) -> None: ...

    def damage_found(self, log: PartitionLog) -> None:
        """Something in the log went into quarantine just now: somebody may have it whole."""

    async def save_log_start_offsets(self) -> None: ...

    async def lower_recovery_point(self, log: PartitionLog) -> None:
        """The log was cut: what takes the place of the lost records is not on the disk because they were."""
