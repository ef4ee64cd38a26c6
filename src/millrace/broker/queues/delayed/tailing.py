"""Keeps the index of one partition of the store up with its log, on the leader and on followers alike: who
leads next has what it needs."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from millrace.broker.queues.delayed.reading import locate, off_loop, records_of
from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.disk.volume import Volume
from millrace.log.errors import OffsetOutOfRange
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.queues.delayed.codec import Entry
from millrace.queues.delayed.index import DelayIndex, IndexDamaged, Place
from millrace.wire.batch_header import read_header

logger: Final = logging.getLogger(__name__)

SAVE_AFTER_S: Final = 5.0
"""How long changes of the index may wait for its checkpoint: what is not in it is read again at a start."""


class Tail:
    """The log of a partition of the store, read into its index."""

    def __init__(self, log: PartitionLog, volume: Volume, clock: Clock) -> None:
        self.log = log
        self.volume = volume
        self.index = DelayIndex(volume, log.path)
        self._clock = clock
        self._is_open = False
        self._saved_at = 0.0

    @property
    def is_at_end(self) -> bool:
        """Whether all that is committed is in the index."""
        return self._is_open and self.index.state.next_offset >= self.log.high_watermark

    async def open(self) -> None:
        """Take over the index that lies there, or begin a new one."""
        if self._is_open:
            return
        try:
            await off_loop(self.volume, self.log.path, self.index.open)
            await self._compare_with_log()
        except IndexDamaged as damage:
            await self.begin_again(damage)
        self._is_open = True

    async def begin_again(self, damage: MillraceError) -> None:
        """Build the index from the log."""
        if self.log.log_end_offset > self.log.log_start_offset:
            logger.info("%s: %s", self.log.topic_partition, damage)
        start = self.log.log_start_offset
        await off_loop(self.volume, self.log.path, partial(self.index.begin_again, start))

    async def _compare_with_log(self) -> None:
        """Raise IndexDamaged unless this log is the one that was indexed, and has all that was not."""
        log, index = self.log, self.index
        if index.state.next_offset < log.log_start_offset:
            raise IndexDamaged(index.path, "the log begins behind what is indexed")
        if index.state.next_offset > log.log_end_offset:
            raise IndexDamaged(index.path, "the log ends before what is indexed")
        base_offset, crc = index.last_batch
        if base_offset < log.log_start_offset:
            return
        found = log.read(base_offset, 1, log.log_end_offset, True)
        data = await off_loop(self.volume, log.path, found.read)
        if not data or read_header(data).crc != crc:
            raise IndexDamaged(index.path, "the log holds something else than what is indexed")

    async def follow(self) -> list[Entry]:
        """Read what was committed since; returns what was added, for who holds entries in memory."""
        await self.open()
        added: list[Entry] = []
        log = self.log
        while not self.is_at_end:
            try:
                found = locate(log, self.index.state.next_offset, log.high_watermark)
            except OffsetOutOfRange:
                # What was deleted is settled; what is pending comes behind it.
                await self.begin_again(IndexDamaged(self.index.path, "the log begins behind it"))
                continue
            if found is None:
                break
            work = partial(take_in, self.index, found, log.topic_partition, self._clock.wall_ms())
            added += await off_loop(self.volume, log.path, work)
        return added

    async def save(self, now: float, *, at_once: bool = False) -> bool:
        """Write the checkpoint if it is time to; whether it was written."""
        if not self._is_open or not self.index.is_dirty:
            return False
        if not at_once and now - self._saved_at < SAVE_AFTER_S:
            return False
        self._saved_at = now
        await off_loop(self.volume, self.log.path, self.index.save)
        return True


def take_in(index: DelayIndex, found: LogSlice, name: TopicPartition, now_ms: int) -> list[Entry]:
    """Index a slice of the log; returns what belongs into memory. Runs off the loop."""
    state = index.state
    unknown_before = state.unknown_count
    place = index.last_batch
    for header, records in records_of(found.read(), name):
        if header.base_offset + header.last_offset_delta < state.next_offset:
            continue
        for offset, record in records:
            if offset >= state.next_offset:
                state.apply(offset, record, index.is_recent)
        state.next_offset = header.base_offset + header.last_offset_delta + 1
        place = Place(header.base_offset, header.crc)
    if state.unknown_count > unknown_before:
        logger.error(
            "%s: %d messages are settled before offset %d that were not pending",
            name,
            state.unknown_count - unknown_before,
            state.next_offset,
        )
    added = index.note_handed_out(index.take_in(now_ms, place))
    if index.is_full:
        index.save()
    return added
