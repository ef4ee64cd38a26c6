"""The end of a log's newest file: read before the first append, mended after a torn write, rolled if full."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from millrace.log.errors import BatchTooLarge, StorageError
from millrace.log.partition.isolation import past_damage
from millrace.log.segments.segment import Segment
from millrace.log.state import producer_snapshots

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)


class Tail:
    """A part of PartitionLog: where its writes go."""

    __slots__ = ("_is_open", "_is_torn", "_log")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._is_open = False
        """Whether the end of the file was read since the start, or since it was last in doubt."""
        self._is_torn = False
        """Whether the file may have bytes behind the last batch, left by a write that failed."""

    @property
    def is_open(self) -> bool:
        return self._is_open

    def require_open(self) -> None:
        """Learn from the files what appending needs; until now the log believed sizes and the checkpoint."""
        if self._is_open:
            return
        log = self._log
        segment = log.segment_list.active
        file_size = segment.file.size_bytes()
        if file_size != segment.size_bytes:
            logger.warning(
                "%s: its newest file has %d bytes where %d were expected", log, file_size, segment.size_bytes
            )
            segment.size_bytes = min(file_size, segment.size_bytes)
            self._is_torn = True
        next_offset = past_damage(log, segment.open_tail)
        if next_offset != log.log_end_offset:
            logger.warning("%s: its last batch ends at %d, and so does the log", log, next_offset)
            log.log_end_offset = next_offset
            log.flushed_offset = min(log.flushed_offset, next_offset)
        self._is_open = True
        log.state.epochs  # noqa: B018 - read now, so that the append path can compare
        log.state.load_producers()

    def doubt(self) -> None:
        """Read the end of the file again before the next append."""
        self._is_open = False
        self._log.segment_list.active.forbid_appends()

    def cut(self) -> None:
        """Note that the file was cut at a batch boundary: it ends cleanly, but elsewhere."""
        self._is_torn = False
        self.doubt()

    def prepare(self, size: int, delta: int, max_timestamp: int) -> Segment:
        """Do whatever an append needs beyond a write: open the tail, repair a torn write, roll. Returns the
        segment that takes the batch."""
        log = self._log
        log.check_writable()
        try:
            return self._make_ready(size, delta, max_timestamp)
        except StorageError as error:
            log.home.write_refused(error)
            raise

    def _make_ready(self, size: int, delta: int, max_timestamp: int) -> Segment:
        log = self._log
        config = log.config
        if size > config.segment_bytes:
            raise BatchTooLarge(size, size_bytes_max=config.segment_bytes)
        self.require_open()
        self.mend()
        segment = log.segment_list.active
        jitter_ms = log.home.roll_jitter_ms(config.segment_jitter_ms)
        if segment.size_limit < 0:
            segment.set_limits(config, jitter_ms)
        if segment.size_bytes and not segment.has_room(size, log.log_end_offset + delta, max_timestamp):
            segment = self.roll()
            segment.set_limits(config, jitter_ms)
        if segment.size_bytes == 0:
            # This write may create the file, whose flushed content is worth nothing without its name.
            log.sync_later(directory=log.path)
            segment.note_first_batch(max_timestamp, config, jitter_ms)
        return segment

    def write(self, segment: Segment, data: memoryview | bytes | bytearray) -> None:
        """Write behind the segment's last batch. The caller lets the segment's size grow afterwards."""
        try:
            segment.file.write_at(segment.size_bytes, data)
        except StorageError as error:
            self.write_failed(segment, error)
            raise

    def write_failed(self, segment: Segment, error: StorageError) -> None:
        """Cut off what a failed write left in the file, now or before the next write: none of it counts."""
        segment.forbid_appends()
        self._is_torn = True
        home = self._log.home
        home.write_refused(error)
        if home.offline_reason is not None:
            return
        try:
            self.mend()
        except StorageError:
            # The next append tries again.
            return

    def mend(self) -> None:
        """Cut off what a write that failed has left behind the last batch."""
        if self._is_torn:
            segment = self._log.segment_list.active
            segment.file.truncate(segment.size_bytes)
            self._is_torn = False

    def roll(self) -> Segment:
        """Begin a new segment at the end of the log. If that fails, nothing has changed.

        The first append takes the slow path, which opens the segment: its batch begins the segment's time."""
        log = self._log
        log.check_writable()
        log.write_staged()
        self.require_open()
        old = log.segment_list.active
        base_offset = log.log_end_offset
        if old.size_bytes == 0 and old.base_offset == base_offset:
            return old
        volume = log.home.volume
        old.finish_indexes()
        snapshot = producer_snapshots.save_snapshot(volume, log.path, base_offset, log.producers)
        segment = Segment(volume, log.path, base_offset, 0, create=True)
        try:
            segment.file.truncate(0)
        except StorageError:
            self._take_back(segment)
            raise
        old.seal()
        log.sync_later(snapshot, directory=log.path)
        log.segment_list.replace([*log.segment_list.all, segment])
        log.flushing.mark_dirty()
        return segment

    def _take_back(self, segment: Segment) -> None:
        """Leave no file where a segment did not begin: the present one may grow beyond its offset, and the
        next start would take both for segments that overlap."""
        log = self._log
        segment.close()
        try:
            log.home.volume.remove(segment.file.path)
        except StorageError:
            # The file is left, so the next append has to begin that segment.
            log.segment_list.active.size_limit = 0
