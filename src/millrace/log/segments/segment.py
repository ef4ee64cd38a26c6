"""One segment of a partition's log: a `.log` file of record batches and its indexes, in Kafka's format.

Synchronous, single writer, owned by a PartitionLog. Batches stay opaque: headers are read, records never.
Durable only after the owner's flush.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.log.config import INT64_MAX, LogConfig
from millrace.log.disk.renames import rename_all, rename_back
from millrace.log.disk.volume import FileHandle, Volume, VolumeFile
from millrace.log.errors import CorruptLog, DiskFull, FileMissing, ReadOnlyDisk, StorageError
from millrace.log.segments.header_walk import BATCH_LENGTH_MIN, RELATIVE_OFFSET_MAX, WALK_BYTES, walk_headers
from millrace.log.segments.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from millrace.log.segments.offset_index import OffsetIndex
from millrace.log.segments.quarantine import QUARANTINE_SUFFIX, DamagedRange, behind_damage, bytes_to_skip
from millrace.log.segments.sparse_index import STORE_AT_BYTES
from millrace.log.segments.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from millrace.log.segments.time_index import TimeIndex
from millrace.log.segments.txn_index import AbortedTransaction, TxnIndex, encode_aborted
from millrace.wire.batch_header import HEADER_SIZE, LENGTH_END, MAGIC, BatchHeader, read_header

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

_RECENT_MAX: Final = 256
_HINTS_MAX: Final = 32

_NEVER_FITS: Final = -1

_unpack_walk: Final = struct.Struct(">qi4xb6xi").unpack_from
"""Unpacks base offset, length, magic and last offset delta of a header."""


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


class Located(NamedTuple):
    """A batch in a segment's file."""

    position: int
    end: int
    base_offset: int


class Segment:
    """One segment. The last one of a log is active and takes appends; the others never change.

    `size_limit`, `offset_limit` and `timestamp_limit` tell the append path that the batch does not belong
    here any more. A size limit below zero sends every append to the owner's slow path: the tail was not read
    yet, a write was torn, or the directory is fenced.
    """

    __slots__ = (
        "_hints",
        "_offset_index",
        "_time_index",
        "_txn_index",
        "_volume",
        "base_offset",
        "cached_from",
        "damage",
        "directory",
        "file",
        "first_timestamp",
        "index_interval_bytes",
        "index_limit",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_limit",
        "recent_offsets",
        "recent_positions",
        "size_bytes",
        "size_limit",
        "timestamp_limit",
        "unindexed_bytes",
    )

    def __init__(
        self, volume: Volume, directory: str, base_offset: int, size_bytes: int, *, create: bool = False
    ) -> None:
        self._volume = volume
        self.directory = directory
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.file: VolumeFile = volume.file(segment_path(directory, base_offset, LOG_SUFFIX), create=create)
        self.cached_from = size_bytes
        """Bytes before this position are not expected in the page cache: this process dropped them, or did
        not write them."""
        self.damage: tuple[DamagedRange, ...] = ()
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._hints: dict[int, int] | None = None
        self.recent_offsets: list[int] = []
        self.recent_positions: list[int] = []

        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp = -1
        """The largest timestamp of the first batch: time-based rolling counts from it."""
        self.unindexed_bytes = 0
        self.index_interval_bytes = 4096
        self.index_limit = 0
        self.size_limit = _NEVER_FITS
        self.offset_limit = base_offset + RELATIVE_OFFSET_MAX
        self.timestamp_limit = INT64_MAX

    # Writing

    def set_limits(self, config: LogConfig, jitter_ms: int) -> None:
        """Open the segment for appends under these settings."""
        # This opens both indexes, or raises before any append: after a batch's write, no file may have to be
        # opened, because the system could refuse that.
        entry_count = self.offset_index.count
        self.time_index  # noqa: B018
        self.index_interval_bytes = config.index_interval_bytes
        self.index_limit = min(
            config.segment_index_bytes // OFFSET_ENTRY_SIZE, config.segment_index_bytes // TIME_ENTRY_SIZE - 1
        )
        self._set_timestamp_limit(config, jitter_ms)
        self.size_limit = 0 if entry_count >= self.index_limit else config.segment_bytes

    def _set_timestamp_limit(self, config: LogConfig, jitter_ms: int) -> None:
        if self.first_timestamp >= 0:
            segment_ms = config.segment_ms
            if config.cleanup_compact:
                # Only a closed segment can be compacted, so it must close in time for that.
                segment_ms = min(segment_ms, config.max_compaction_lag_ms)
            self.timestamp_limit = self.first_timestamp + segment_ms - jitter_ms
        else:
            self.timestamp_limit = INT64_MAX

    def forbid_appends(self) -> None:
        """Send the next append to the owner's slow path."""
        self.size_limit = _NEVER_FITS

    def has_room(self, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether a batch still belongs into this segment."""
        return (
            self.size_bytes + size <= self.size_limit
            and last_offset <= self.offset_limit
            and max_timestamp <= self.timestamp_limit
        )

    def note(self, position: int, size: int, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Keep the indexes and the memory of recent batches in step with a batch that was written.

        No disk can make this fail: the batch is in the file, and the index is made from it."""
        recent = self.recent_offsets
        recent.append(base_offset)
        self.recent_positions.append(position)
        if len(recent) > _RECENT_MAX:
            del recent[: _RECENT_MAX // 2]
            del self.recent_positions[: _RECENT_MAX // 2]
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.unindexed_bytes > self.index_interval_bytes:
            self._add_index_entries(last_offset, position)
            self.unindexed_bytes = size
        else:
            self.unindexed_bytes += size

    def _add_index_entries(self, last_offset: int, position: int) -> None:
        offset_index = self._offset_index
        if offset_index is None:
            offset_index = self.offset_index
        base_offset = self.base_offset
        offset_index.add(last_offset - base_offset, position)
        self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
        if offset_index.count >= self.index_limit > 0:
            self.size_limit = 0
        if len(offset_index.tail) >= STORE_AT_BYTES:
            try:
                self.store_indexes()
            except StorageError:
                # The entries wait in memory for the next attempt. A flush makes one, and tells the log's home
                # what the disk says.
                return

    def forget_recent(self) -> None:
        """Forget recent batches, as before a gap: each of them must hold all offsets up to the next."""
        self.recent_offsets = []
        self.recent_positions = []

    def drop_cached_before(self, position: int) -> None:
        """Note that the file leaves the page cache up to here: batches there are no longer recent."""
        self.cached_from = position
        keep = bisect_left(self.recent_positions, position)
        del self.recent_offsets[:keep], self.recent_positions[:keep]

    def note_first_batch(self, max_timestamp: int, config: LogConfig, jitter_ms: int) -> None:
        self.first_timestamp = max_timestamp
        self._set_timestamp_limit(config, jitter_ms)

    def store_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.store()
        if self._time_index is not None:
            self._time_index.store()

    def store_aborted(self) -> None:
        """Write the entries of aborted transactions out that the disk did not take before."""
        if self._txn_index is not None:
            self._txn_index.store()

    def seal(self) -> None:
        """Take no more appends: the segment's files are in their final state."""
        self.forbid_appends()
        self.forget_recent()

    def finish_indexes(self) -> None:
        """Enter the largest timestamp, as Kafka does when it rolls or closes a segment, and write all entries
        out."""
        self.store_aborted()
        if self.size_bytes == 0:
            return
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
        # Also empty ones are written: Kafka builds a missing index again, and would complain about it.
        for index in (self.offset_index, self.time_index):
            index.trim_file()

    # Reading

    def locate(self, offset: int) -> Located | None:
        """The batch that holds `offset`, or the first one behind it; None if all batches end before it."""
        if offset <= self.base_offset:
            return self._walk(0, offset=offset)
        hint = self._hints.get(offset) if self._hints else None
        entry = self.offset_index.find(0, offset - self.base_offset) if hint is None else None
        if entry is None:
            return self._walk(hint or 0, offset=offset)
        indexed_offset, position = entry
        return self._walk(position, offset=offset, indexed_offset=indexed_offset)

    def end_before(self, limit_offset: int) -> int:
        """Where the batches whose base offset is below `limit_offset` end."""
        found = self.locate(limit_offset)
        if found is None:
            return self.size_bytes
        return found.position if found.base_offset >= limit_offset else found.end

    def boundary(self, start: int, end: int, max_bytes: int) -> int:
        """The last batch boundary at most `max_bytes` behind `start`; `start` itself if no batch fits."""
        target = start + max_bytes
        if end <= target:
            return end
        entry = self.offset_index.find(1, target)
        if entry is None or entry[1] <= start:
            found = self._walk(start, end_max=target)
        else:
            found = self._walk(entry[1], end_max=target, indexed_offset=entry[0])
        if found is None:
            return end
        self._remember_hint(found)
        return min(found.position, end)

    def start_before(self, offset: int) -> int:
        """The start of a batch at or before the one that holds `offset`, after a check of the index entry."""
        return self._checked_start(self.offset_index.find(0, offset - self.base_offset))

    def boundary_before(self, position: int) -> int:
        """The start of a batch at or before `position`, after a check of the index entry."""
        return self._checked_start(self.offset_index.find(1, position))

    def _checked_start(self, entry: tuple[int, int] | None) -> int:
        if entry is None:
            return 0
        self._check_entry(entry)
        _, position = entry
        return position

    def _check_entry(self, entry: tuple[int, int]) -> None:
        """Raise if the index contradicts the batch that it points at."""
        relative_offset, position = entry
        _, is_damaged = behind_damage(self.damage, position)
        if is_damaged:
            return
        data = self.file.read_at(position, HEADER_SIZE) if 0 <= position < self.size_bytes else b""
        if len(data) == HEADER_SIZE:
            header = read_header(data)
            if header.magic == MAGIC and header.last_offset == self.base_offset + relative_offset:
                return
        raise CorruptLog(self.file.path, position, offset=self.base_offset, next_offset=None)

    def _walk(
        self,
        position: int,
        *,
        offset: int = INT64_MAX,
        end_max: int = INT64_MAX,
        indexed_offset: int | None = None,
    ) -> Located | None:
        """From a batch's start on, the first batch that reaches `offset` or ends behind `end_max`.

        `indexed_offset` is the relative last offset of the first batch, as the index has it: a wrong entry
        would make readers miss records. So would a wrong base offset, which no checksum covers: it does not
        fit behind the batch before, or before the next one."""
        size_bytes = self.size_bytes
        next_offset = self.base_offset
        read_at = self.file.handle().read_at
        damage = None
        if self.damage:
            damage = bytes_to_skip(self.damage)
            position, is_moved = behind_damage(self.damage, position)
            if is_moved:
                indexed_offset = None
        if indexed_offset is not None and not 0 <= position < size_bytes:
            raise CorruptLog(self.file.path, position, offset=self.base_offset, next_offset=None)
        chunk = b""
        chunk_start = chunk_last = position
        while position < size_bytes:
            if damage and position in damage:
                position += damage[position]
                continue
            if position >= chunk_last:
                chunk = read_at(position, min(WALK_BYTES, size_bytes - position))
                chunk_start = position
                chunk_last = position + len(chunk) - HEADER_SIZE + 1
                if chunk_last <= position:
                    raise CorruptLog(self.file.path, position, offset=self.base_offset, next_offset=None)
            base_offset, length, magic, delta = _unpack_walk(chunk, position - chunk_start)
            end = position + LENGTH_END + length
            if length < BATCH_LENGTH_MIN or magic != MAGIC or end > size_bytes or base_offset < next_offset:
                raise CorruptLog(self.file.path, position, offset=base_offset, next_offset=None)
            next_offset = base_offset + delta + 1
            if indexed_offset is not None:
                if base_offset + delta != self.base_offset + indexed_offset:
                    raise CorruptLog(self.file.path, position, offset=base_offset, next_offset=None)
                indexed_offset = None
            if next_offset > offset or end > end_max:
                if base_offset > offset:
                    self._check_gap(position, end, next_offset=next_offset)
                return Located(position, end, base_offset)
            position = end
        return None

    def _check_gap(self, position: int, end: int, *, next_offset: int) -> None:
        """Raise if a batch that was found behind the wanted offset reaches into the next one: then the
        batch's offset has changed, and the gap is not compaction's."""
        following = self.file.read_at(end, HEADER_SIZE) if end + HEADER_SIZE <= self.size_bytes else b""
        if len(following) == HEADER_SIZE and not any(each.position == end for each in self.damage):
            base_offset, _, magic, _ = _unpack_walk(following)
            if magic == MAGIC and base_offset < next_offset:
                raise CorruptLog(self.file.path, position, offset=base_offset, next_offset=None)

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of the batches from a batch's start on, without damaged ranges. An offset that
        does not follow those before it counts as damage."""
        for at, fields in self.plain_headers(position, end):
            yield at, BatchHeader._make(fields)

    def plain_headers(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """As `headers`, for those who read many: the fields of BatchHeader in plain tuples."""
        end = self.size_bytes if end is None else end
        return walk_headers(self.file, self.base_offset, self.damage, position=position, end=end)

    def set_damage(self, damage: tuple[DamagedRange, ...]) -> None:
        """Serve these ranges no more. Positions that were remembered may lie in them, and are forgotten."""
        self.damage = damage
        self._hints = None
        self.forget_recent()

    def _remember_hint(self, found: Located) -> None:
        hints = self._hints
        if hints is None:
            hints = self._hints = {}
        hints[found.base_offset] = found.position
        if len(hints) > _HINTS_MAX:
            del hints[next(iter(hints))]

    # Indexes, opened when first needed

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = self._open_offset_index()
            self._check_indexes()
        return self._offset_index

    def _open_offset_index(self) -> OffsetIndex:
        file = self._volume.file(self.path(OFFSET_INDEX_SUFFIX), create=True)
        return OffsetIndex(file, base_offset=self.base_offset, stored_size_bytes=_size_or_zero(file))

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            file = self._volume.file(self.path(TIME_INDEX_SUFFIX), create=True)
            self._time_index = TimeIndex(
                file, base_offset=self.base_offset, stored_size_bytes=_size_or_zero(file)
            )
        return self._time_index

    def opened_indexes(self) -> tuple[OffsetIndex | None, TimeIndex | None]:
        """Both indexes, without opening any."""
        return self._offset_index, self._time_index

    @property
    def txn_index(self) -> TxnIndex:
        if self._txn_index is None:
            self._txn_index = TxnIndex(self._volume.file(self.path(TXN_INDEX_SUFFIX), create=True))
        return self._txn_index

    @property
    def opened_txn_index(self) -> TxnIndex | None:
        return self._txn_index

    def replace_aborted(self, aborted: list[AbortedTransaction]) -> None:
        """Let the index of aborted transactions hold these, all at once: an index with half of them would
        show readers aborted records."""
        self._volume.write_bytes(self.path(TXN_INDEX_SUFFIX), encode_aborted(aborted))
        if self._txn_index is not None:
            self._txn_index.file.close()
            self._txn_index = None

    def _check_indexes(self) -> None:
        """Build the indexes again if the offset index is missing or points where no batch starts."""
        index = self._offset_index
        assert index is not None
        if index.count == 0:
            if self.size_bytes > self.index_interval_bytes:
                self.rebuild_indexes()
            return
        try:
            self._check_entry(index.entry(index.count - 1))
        except CorruptLog:
            self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Make both indexes from the batches alone."""
        self.clear_indexes()
        recent = self.recent_offsets, self.recent_positions
        self.recent_offsets, self.recent_positions = [], []
        try:
            for position, fields in self.plain_headers():
                base_offset, length, _, _, _, _, delta, _, max_timestamp, _, _, _, _ = fields
                self.note(position, LENGTH_END + length, base_offset, base_offset + delta, max_timestamp)
        except CorruptLog:
            # Half an index would be legal but stay slow, so the next use makes it again.
            self._offset_index = self._time_index = None
            raise
        finally:
            self.recent_offsets, self.recent_positions = recent
        try:
            self.finish_indexes()
        except (DiskFull, ReadOnlyDisk):
            # The indexes serve from memory as well; the next start makes them again.
            return

    def clear_indexes(self) -> None:
        """Start both indexes anew, whatever the files hold."""
        self._offset_index = self._open_offset_index()
        self._offset_index.cut(0)
        self.time_index.truncate_to(self.base_offset)
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self.unindexed_bytes = 0
        self._hints = None

    def open_tail(self) -> int:
        """Learn what appending needs from the end of the files; returns the offset after the last batch."""
        self.max_timestamp = self.time_index.last_timestamp
        self.max_timestamp_offset = self.time_index.last_offset
        next_offset = self.base_offset
        if self.size_bytes == 0:
            return next_offset
        index = self.offset_index
        indexed = index.entry(index.count - 1)[1] if index.count else 0
        self.unindexed_bytes = 0
        self.forget_recent()
        for position, header in self.headers(indexed):
            if header.base_offset != next_offset:
                self.forget_recent()
            next_offset = header.next_offset
            self.recent_offsets.append(header.base_offset)
            self.recent_positions.append(position)
            self.unindexed_bytes += header.size_bytes
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = next_offset - 1
        for damaged in self.damage:
            next_offset = max(next_offset, damaged.next_offset)
        del self.recent_offsets[:-_RECENT_MAX], self.recent_positions[:-_RECENT_MAX]
        for _, header in self.headers(0):
            self.first_timestamp = header.max_timestamp
            break
        return next_offset

    def end_offset(self) -> int:
        """The offset behind the last batch of a closed segment."""
        end_offset = self.base_offset
        for _, header in self.headers(self.start_before(INT64_MAX)) if self.size_bytes else ():
            end_offset = header.next_offset
        return max([end_offset, *(damaged.next_offset for damaged in self.damage)])

    def retention_timestamp(self) -> int:
        """The age for retention: quarantined records may be younger than the rest, but not than the file."""
        if self.damage:
            return max(self.largest_timestamp(), self._volume.modified_ms(self.file.path))
        return self.largest_timestamp()

    def largest_timestamp(self) -> int:
        """The largest timestamp of the records, or the file's if they have none."""
        if self.max_timestamp < 0 and self.size_bytes > 0:
            self.max_timestamp = self.time_index.last_timestamp
            self.max_timestamp_offset = self.time_index.last_offset
            if self.max_timestamp < 0:
                return self._volume.modified_ms(self.file.path)
        return self.max_timestamp

    # Files

    def path(self, suffix: str) -> str:
        return segment_path(self.directory, self.base_offset, suffix)

    def truncate_to(self, position: int, *, next_offset: int) -> None:
        """Cut the file at a batch boundary; the batches from `next_offset` on are gone."""
        self.file.truncate(position)
        self.size_bytes = position
        self.cached_from = min(self.cached_from, position)
        self.offset_index.truncate_to(next_offset)
        self.time_index.truncate_to(next_offset)
        if self._volume.exists(self.path(TXN_INDEX_SUFFIX)):
            self.txn_index.truncate_to(next_offset)
        self._hints = None
        keep = bisect_left(self.recent_positions, position)
        del self.recent_offsets[keep:], self.recent_positions[keep:]
        self.damage = tuple(damaged for damaged in self.damage if damaged.position < position)

    def handles_to_sync(self, *, with_indexes: bool) -> list[FileHandle]:
        """Open files for an fsync elsewhere.

        The active segment's indexes need none: recovery builds them again after a crash. Its log sees to the
        index of aborted transactions, which is built again only from the recovery point on."""
        handles = [self.file.handle()]
        if with_indexes and self.size_bytes:
            handles += [index.file.handle() for index in (self.offset_index, self.time_index)]
        if with_indexes and self._volume.exists(self.path(TXN_INDEX_SUFFIX)):
            handles.append(self.txn_index.file.handle())
        return handles

    def close(self) -> None:
        self.file.close()
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None:
                index.file.close()

    def forget_indexes(self) -> None:
        """Let go of the index objects; they are read again when needed."""
        self.close()
        self._offset_index = self._time_index = None
        self._txn_index = None
        self._hints = None

    def rename_to(self, suffix: str) -> list[str]:
        """Move all files of the segment out of the way, or none of them; returns their new paths."""
        self.close()
        own = (LOG_SUFFIX, *INDEX_SUFFIXES, QUARANTINE_SUFFIX)
        done = rename_all(self._volume, [(self.path(each), self.path(each) + suffix) for each in own])
        self.file.path = self.path(LOG_SUFFIX) + suffix
        return [target for _, target in done]

    def rename_back(self, paths: list[str], suffix: str) -> None:
        """Undo a `rename_to` that returned these paths."""
        self.close()
        rename_back(self._volume, [(path.removesuffix(suffix), path) for path in paths])
        self.file.path = self.path(LOG_SUFFIX)


def _size_or_zero(file: VolumeFile) -> int:
    try:
        return file.size_bytes()
    except FileMissing:
        return 0
