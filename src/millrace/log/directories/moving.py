"""Copies a log into another data directory while it is written to, and puts the copy in its place.

The copy is made of files, byte for byte, off the loop. Rounds repeat until so little is missing that the rest
can be written on the loop, between two appends; in the same moment the copy takes over. Whatever happens to
the original meanwhile (appends, a cut, retention, mending) shows in its list of segments, and what differs is
copied again: the copy that takes over consists of exactly the original's segments.

The names tell a later start how far the move came, whatever was lost with the power:

    A/orders-0                and  B/orders-0.<unique>-future   the original counts, the copy is thrown away
    A/orders-0.<unique>-moved and  B/orders-0.<unique>-future   the copy counts: it was complete
    A/orders-0.<unique>-moved and  B/orders-0                   the copy counts
    A/orders-0                and  B/orders-0                   the copy counts if its `moved-from` names A

The last line is a power loss that took the new name of the original back. The copy was flushed before it
took over, up to what the original had flushed; what is flushed afterwards is flushed together with the copy's
name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

from millrace.core.lanes import Waits
from millrace.log.config import INT64_MAX
from millrace.log.directories.log_copies import FilePiece, Passage, copy_pieces, flush_copy, forget_original
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.disk.volume import Volume
from millrace.log.errors import LogDirectoryOffline, StorageError
from millrace.log.partition.layout import MOVED_DIRECTORY_SUFFIX, unique_directory_name
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.segments.quarantine import DamagedRange
from millrace.log.segments.segment import LOG_SUFFIX, TXN_INDEX_SUFFIX, Segment, segment_path

ROUND_BYTES_MAX: Final = 8 * 1024 * 1024
"""So much is copied between two looks at the original."""
NEARLY_ALL_BYTES: Final = 256 * 1024
"""So little may be missing when the copy begins to take over."""
REST_BYTES_MAX: Final = 64 * 1024
"""So much may be copied on the loop, when the copy takes over."""
ATTEMPTS_MAX: Final = 20
"""How often the copy tries to take over while others write faster than the disk can be flushed. After that
the mover tries again later."""


class OriginalGone(Exception):
    """The log was closed or deleted while it was copied."""


class _Piece(NamedTuple):
    """A part of a segment to copy, and what the segment was when that was planned."""

    segment: Segment
    damage: tuple[DamagedRange, ...]
    file: FilePiece


class _Copied:
    """What the copy has of one segment."""

    __slots__ = ("damage", "is_complete", "log_bytes", "segment")

    def __init__(self, segment: Segment, damage: tuple[DamagedRange, ...]) -> None:
        self.segment = segment
        self.damage = damage
        """The damage when the copy began: what was mended since is copied again."""
        self.log_bytes = 0
        self.is_complete = False


class LogCopy:
    """A log on its way from one directory to another."""

    def __init__(self, log: PartitionLog, source: LogDirectory, target: LogDirectory, path: str) -> None:
        self.log = log
        self.source = source
        self.target = target
        self.path = path
        """The copy's path, until it takes over."""
        self._unique = path.rpartition(".")[2].partition("-")[0]
        self._volume: Volume = target.volume
        self._is_stopped = False
        self.moved_path = ""
        """The original's path, once the copy has taken over."""
        self._copied: dict[int, _Copied] = {}
        self._doomed: list[int] = []
        """Segments whose copies have to be removed."""

    @property
    def copied_bytes(self) -> int:
        return sum(copied.log_bytes for copied in self._copied.values())

    @property
    def end_offset(self) -> int:
        """Everything below it is in the copy."""
        end_offset = self.log.segments[0].base_offset
        for segment in self.log.segments:
            copied = self._copied.get(segment.base_offset)
            if copied is None or copied.segment is not segment or copied.log_bytes < segment.size_bytes:
                return max(end_offset, segment.base_offset)
        return self.log.log_end_offset

    def missing_bytes(self) -> int:
        """How much the original has that the copy lacks."""
        self._compare()
        return self.log.size_bytes - self.copied_bytes

    # Copying

    def prepare(self) -> None:
        """Begin, on the loop: from here on the copy watches the original's changes."""
        self._is_stopped = False
        self.log.is_moving = True
        if not self._copied:
            self.log.cut_offset = INT64_MAX

    def stop(self) -> None:
        """Let the original stay: the copy must not take over any more."""
        self._is_stopped = True
        self.log.is_moving = False

    async def copy_some(self, bytes_max: int) -> int:
        """Do one round; returns how many bytes of records were copied."""
        self._compare()
        pieces = self._plan(bytes_max)
        doomed, self._doomed = self._doomed, []
        if pieces or doomed:
            files = tuple(piece.file for piece in pieces)
            await _in_executor(self._volume, self.path, copy_pieces, self._passage(), files, tuple(doomed))
        return self._note(pieces)

    def _passage(self) -> Passage:
        return Passage(
            self.log.path,
            self.path,
            self.target.path,
            self.source.directory_id,
            self.target.directory_id,
            self.log.topic_id,
        )

    def _compare(self) -> None:
        """Forget copies of what the original does not have any more."""
        log = self.log
        if log.is_closed:
            raise OriginalGone
        cut_offset, log.cut_offset = log.cut_offset, INT64_MAX
        segments = log.segments
        present = {segment.base_offset: segment for segment in segments}
        ends = {segment.base_offset: following.base_offset for segment, following in pairwise(segments)}
        for base_offset, copied in list(self._copied.items()):
            segment = present.get(base_offset)
            if (
                segment is not copied.segment
                or segment.damage != copied.damage
                or copied.log_bytes > segment.size_bytes
                or ends.get(base_offset, INT64_MAX) > cut_offset
            ):
                del self._copied[base_offset]
                self._doomed.append(base_offset)

    def _plan(self, bytes_max: int) -> list[_Piece]:
        pieces: list[_Piece] = []
        segments = self.log.segments
        for segment in segments:
            copied = self._copied.get(segment.base_offset)
            position = 0 if copied is None else copied.log_bytes
            is_sealed = segment is not segments[-1]
            if copied is not None and (
                copied.is_complete or (not is_sealed and position == segment.size_bytes)
            ):
                continue
            if bytes_max <= 0:
                break
            size_bytes = min(segment.size_bytes - position, bytes_max)
            bytes_max -= size_bytes
            # The handle keeps the file open: retention may take the name away.
            source = segment.file.handle() if size_bytes else None
            is_complete = is_sealed and position + size_bytes == segment.size_bytes
            file = FilePiece(segment.base_offset, source, position, size_bytes, is_complete)
            pieces.append(_Piece(segment, segment.damage, file))
        return pieces

    def _note(self, pieces: list[_Piece]) -> int:
        size_bytes = 0
        for piece in pieces:
            copied = self._copied.get(piece.segment.base_offset)
            if copied is None:
                copied = _Copied(piece.segment, piece.damage)
                self._copied[piece.segment.base_offset] = copied
            copied.log_bytes = piece.file.position + piece.file.size_bytes
            copied.is_complete = piece.file.is_complete
            size_bytes += piece.file.size_bytes
        return size_bytes

    # Taking over

    async def take_over(self, installed: Callable[[PartitionLog, PartitionLog], None]) -> PartitionLog | None:
        """Bring the copy to the end and let it take the original's place; None if others write too fast.

        `installed` is called at that very moment, with the original and the copy."""
        for _ in range(ATTEMPTS_MAX):
            if self._is_stopped:
                break
            await self._flush_copy()
            if self.missing_bytes() > NEARLY_ALL_BYTES:
                await self.copy_some(ROUND_BYTES_MAX)
                continue
            try:
                # What the original has on its disk must be on the other one before it counts there.
                await self.log.hold_flushes()
                await self._flush_copy()
                copy = self._switch(installed)
            finally:
                self.log.release_flushes()
            if copy is not None:
                return copy
        return None

    async def _flush_copy(self) -> None:
        """Copy all there is, and return when it is on the disk with all that a start needs to know."""
        log = self.log
        log.write_staged()
        log.segments[-1].store_indexes()
        while await self.copy_some(ROUND_BYTES_MAX):
            if self.missing_bytes() <= REST_BYTES_MAX:
                break
        active, epoch_starts = log.segments[-1].base_offset, tuple(log.epochs.starts)
        await _in_executor(self._volume, self.path, flush_copy, self._passage(), active, epoch_starts)

    def _switch(self, installed: Callable[[PartitionLog, PartitionLog], None]) -> PartitionLog | None:
        """Take over, on the loop and without a pause. None if more is left to copy than can be done there."""
        log, target = self.log, self.target
        for directory in (self.source, target):
            if directory.offline_reason is not None:
                raise LogDirectoryOffline(directory.path, directory.offline_reason)
        log.write_staged()
        if self._is_stopped or self.missing_bytes() > REST_BYTES_MAX or self._doomed:
            return None
        pieces = self._plan(REST_BYTES_MAX + 1)
        active = log.segments[-1]
        if any(piece.segment is not active for piece in pieces):
            # The log was rolled: the files of a whole segment have to follow first.
            return None
        for _, _, piece in pieces:
            if piece.source is not None:
                rest = self._volume.file(segment_path(self.path, active.base_offset, LOG_SUFFIX), create=True)
                rest.write_at(piece.position, piece.source.read_at(piece.position, piece.size_bytes))
                rest.close()
        self._note(pieces)
        # Entries of aborted transactions are nowhere else: without one, readers see aborted records.
        active.store_aborted()
        aborted_path = self._copy_aborted(active)
        final_path = f"{target.path}/{log.topic_partition}"
        if self._volume.exists(final_path):
            raise StorageError("move to", final_path, "something else has that name")
        name = unique_directory_name(log.topic_partition, self._unique, MOVED_DIRECTORY_SUFFIX)
        moved_path = f"{self.source.path}/{name}"
        self._volume.rename(log.path, moved_path)
        try:
            self._volume.rename(self.path, final_path)
            copy = self._opened(final_path)
        except Exception:
            self._back_to_the_original(moved_path, final_path)
            raise
        self.source.give_up(log.topic_partition)
        target.take_over(copy)
        copy.succeed(log)
        if aborted_path is not None:
            copy.sync_later(f"{final_path}/{aborted_path}")
        # Whoever waits for the disk from now on also waits for the name.
        copy.sync_later(directory=target.path)
        installed(log, copy)
        log.retire(copy)
        self.moved_path = moved_path
        return copy

    def _back_to_the_original(self, moved_path: str, final_path: str) -> None:
        """Restore the names that let the original count. If the disk refuses, the copy counts at the next
        start: then nothing may be added to the original any more."""
        try:
            if self._volume.exists(final_path):
                self._volume.rename(final_path, self.path)
            self._volume.rename(moved_path, self.log.path)
        except StorageError as error:
            self.source.fence(str(error))

    def _copy_aborted(self, active: Segment) -> str | None:
        """Copy the active segment's index of aborted transactions; returns its name, if there is one."""
        source = active.path(TXN_INDEX_SUFFIX)
        if not self._volume.exists(source):
            return None
        target = segment_path(self.path, active.base_offset, TXN_INDEX_SUFFIX)
        self._volume.write_bytes(target, self._volume.read_bytes(source), durable=False)
        return target.rpartition("/")[2]

    def _opened(self, path: str) -> PartitionLog:
        log = self.log
        segments = []
        for original in log.segments:
            segment = Segment(self._volume, path, original.base_offset, original.size_bytes, create=True)
            segment.damage = original.damage
            segment.max_timestamp = original.max_timestamp
            segment.max_timestamp_offset = original.max_timestamp_offset
            stored_bytes = segment.file.size_bytes()
            if stored_bytes != original.size_bytes:
                self._doomed += self._copied
                self._copied.clear()
                raise StorageError(
                    "use", segment.file.path, f"it has {stored_bytes} bytes, not {original.size_bytes}"
                )
            segments.append(segment)
        return PartitionLog(
            self.target,
            path,
            log.topic_partition,
            log.topic_id,
            log.config,
            segments,
            log_end_offset=log.log_end_offset,
        )

    async def finish(self, copy: PartitionLog, deleted_path: str) -> None:
        """Forget the original as soon as that is safe, after the copy has taken over."""
        await copy.flush()
        await self.target.save_checkpoints()
        source = self.source.path, self.source.directory_id
        await _in_executor(
            self._volume, self.path, forget_original, self.moved_path, deleted_path, source, copy.path
        )
        await self.source.save_checkpoints()


async def _in_executor(volume: Volume, path: str, work: Callable[..., None], *arguments: object) -> None:
    """Do work in a thread for the disk that is written to, with the volume as its first argument."""
    lane = volume.lane(Waits.FILES, path)
    await asyncio.get_running_loop().run_in_executor(lane, work, volume, *arguments)
