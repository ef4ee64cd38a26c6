"""Batches that have their offsets already and wait to be written together, with one call.

Nothing staged counts, to readers or in the producers' state, before it is in the file. Whatever else moves
the log's end has the staged batches written first.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from millrace.core.errors import MillraceError
from millrace.log.errors import DiskFailed, LogClosed, LogDirectoryOffline, StorageError
from millrace.log.segments.segment import Segment
from millrace.log.state.producer_state import SEQUENCE_MAX, subtract_from_sequence
from millrace.wire.batch_header import TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from millrace.log.partition.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)

_write_prefix: Final = struct.Struct(">qii").pack_into
"""The start of a batch: base offset, length, leader epoch. The checksum covers none of them."""

StagedBatch: TypeAlias = tuple[bytes, int, int, int, int, int, int, object]
"""The batch with its offsets in it; base offset, last offset, largest timestamp; producer id, producer epoch,
last sequence; the token that its owner wants back. A plain tuple, since one is made for every small batch:
readers unpack it into names."""
StagedCallback: TypeAlias = Callable[[list[StagedBatch], MillraceError | None], None]


class Staging:
    """A part of PartitionLog: the batches that it has staged."""

    __slots__ = ("_end_offset", "_log", "_size_bytes", "batches", "producers")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.batches: list[StagedBatch] = []
        self.producers: dict[int, tuple[int, int]] = {}
        """Epoch and last sequence of the producers of staged batches."""
        self._size_bytes = 0
        self._end_offset = 0
        """Where the log will end; without meaning while nothing is staged."""

    def precedes(self, header: tuple[int, ...], token: object) -> bool:
        """Whether a batch comes right behind those that its producer has staged, and may be staged, too. If
        not, the staged ones are written now: only then can the batch be told from a duplicate or a gap."""
        _, _, _, _, _, _, _, _, _, producer_id, producer_epoch, sequence, _ = header
        if token is not None and (producer_epoch, sequence - 1) == self.producers[producer_id]:
            return True
        self.write()
        return False

    def stage(
        self,
        batch: memoryview,
        header: tuple[int, ...],
        leader_epoch: int,
        max_timestamp: int,
        token: object,
    ) -> bool:
        """Stage a batch that was checked. False if that is not possible: then what was staged is written
        already, and the caller has to write the batch at once."""
        _, length, _, _, _, attributes, delta, _, _, producer_id, producer_epoch, sequence, _ = header
        log = self._log
        segment = log.segment_list.active
        size = len(batch)
        batches = self.batches
        base_offset = self._end_offset if batches else log.log_end_offset
        last_offset = base_offset + delta
        if (
            token is None
            or attributes & TRANSACTIONAL_BIT
            or leader_epoch != log.state.latest_epoch
            or segment.size_bytes + self._size_bytes + size > segment.size_limit
            or last_offset > segment.offset_limit
            or max_timestamp > segment.timestamp_limit
        ):
            self._write_before(producer_id)
            return False
        _write_prefix(batch, 0, base_offset, length, leader_epoch)
        if producer_id >= 0:
            sequence = (sequence + delta) & SEQUENCE_MAX
            self.producers[producer_id] = (producer_epoch, sequence)
        batches.append(
            # Copied, because the connection reads its next request into the same buffer.
            (
                bytes(batch),
                base_offset,
                last_offset,
                max_timestamp,
                producer_id,
                producer_epoch,
                sequence,
                token,
            )
        )
        self._size_bytes += size
        self._end_offset = last_offset + 1
        return True

    def _write_before(self, producer_id: int) -> None:
        """Write what is staged, if anything, before a batch of this producer."""
        follows_staged = producer_id in self.producers
        failure = self.write() if self.batches else None
        if failure is not None and follows_staged:
            # The batches before it were not written, so it must not be written either.
            raise failure

    def write(self) -> MillraceError | None:
        """Write all staged batches and tell their owner: see `PartitionLog.write_staged`."""
        log = self._log
        staged, self.batches = self.batches, []
        self._size_bytes = 0
        self.producers.clear()
        error: MillraceError | None = None
        segment = log.segment_list.active
        position = segment.size_bytes
        try:
            log.check_writable()
            parts = [data for data, _, _, _, _, _, _, _ in staged]
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            log.tail.write(segment, data)
            # Both ends move at once, as for a single batch.
            segment.size_bytes = position + len(data)
            log.log_end_offset = self._end_offset
            self._enter(segment, position, staged)
        except (StorageError, LogClosed, LogDirectoryOffline) as failure:
            error = failure
            self._expect_again(staged)
        except Exception as bug:
            logger.exception("%s: writing %d staged batches failed", log, len(staged))
            # What memory says of the log's end and of its producers may not be what the files say.
            log.state.forget_producers()
            log.tail.doubt()
            error = DiskFailed("append to", log.path, repr(bug))
        if log.staged_written is not None:
            try:
                log.staged_written(staged, error)
            except Exception:
                logger.exception("%s: the owner of %d staged batches failed", log, len(staged))
        return error

    def _enter(self, segment: Segment, position: int, staged: list[StagedBatch]) -> None:
        """Do for each batch what an append does after its write."""
        log = self._log
        now_ms = log.home.wall_ms()
        producers, note = log.state.loaded_producers, segment.note
        for data, base_offset, last_offset, max_timestamp, producer_id, epoch, sequence, _ in staged:
            size = len(data)
            note(position, size, base_offset, last_offset, max_timestamp)
            position += size
            if producer_id >= 0:
                assert producers is not None
                entry = producers.entries.get(producer_id)
                if entry is None or entry.epoch != epoch:
                    entry = producers.entry_in(producer_id, epoch)
                entry.advance(sequence, last_offset, last_offset - base_offset, max_timestamp, now_ms)
        if last_offset >= log.flushing.notice_at:
            log.flushing.wrote(last_offset)

    def _expect_again(self, staged: list[StagedBatch]) -> None:
        """Note that these could not be stored: their producers have to send them again before others."""
        producers = self._log.state.loaded_producers
        if producers is None:
            return
        now_ms = self._log.home.wall_ms()
        for _, base_offset, last_offset, _, producer_id, epoch, last_sequence, _ in staged:
            if producer_id >= 0:
                sequence = subtract_from_sequence(last_sequence, last_offset - base_offset)
                producers.expect(producer_id, epoch=epoch, sequence=sequence, now_ms=now_ms)
