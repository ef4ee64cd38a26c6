"""How far groups are behind, in messages and in time: exact, from the logs that this broker leads.

Time is the age of the first record that a group has not read. Its timestamp is remembered by offset, so that
a group that stands still costs nothing; for other groups this reads one batch header, or a whole batch where
a group has stopped inside of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from millrace.core.clock import Clock
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.lanes import Waits
from millrace.log.disk.volume import Volume
from millrace.log.partition.log_slice import LogSlice
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions
from millrace.wire.batch_header import DELETE_HORIZON_BIT, HEADER_SIZE, NO_TIMESTAMP, read_header
from millrace.wire.records import read_records

PARTITIONS_PER_TURN: Final = 250
"""After so many partitions other work of the loop gets its turn."""
REMEMBERED_MAX: Final = 100_000


class Lag(NamedTuple):
    """How far a group is behind in one partition."""

    end_offset: int
    """The high watermark, up to which records can be read."""
    messages: int
    time_ms: int | None
    """None if the first unread record has no timestamp, or could not be read."""


class _Unread(NamedTuple):
    place: int
    key: tuple[TopicId, int, int]
    offset: int
    found: LogSlice
    volume: Volume


class LagReader:
    """Measures lags; remembers the timestamps of first unread records, which cost a read each."""

    def __init__(self, partitions: Partitions, clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock
        self._timestamps: dict[tuple[TopicId, int, int], int] = {}

    async def measure(self, committed: Sequence[tuple[str, int, int]]) -> list[Lag | None]:
        """For each (topic, partition, committed offset) the lag; None where another broker leads."""
        now_ms = self._clock.wall_ms()
        lags: list[Lag | None] = []
        unread: list[_Unread] = []
        if len(self._timestamps) > REMEMBERED_MAX:
            self._timestamps.clear()
        for place, (topic, index, offset) in enumerate(committed):
            partition = self._partitions.find(topic, index)
            if partition is None or not partition.is_leader:
                lags.append(None)
            else:
                lags.append(self._locate(place, partition, offset, now_ms, unread))
            if place % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await asyncio.sleep(0)
        if unread:
            timestamps = await self._read(unread)
            for each, timestamp in zip(unread, timestamps, strict=True):
                lag = lags[each.place]
                if lag is not None and timestamp is not None:
                    self._timestamps[each.key] = timestamp
                    lags[each.place] = lag._replace(time_ms=_age(timestamp, now_ms))
        return lags

    async def _read(self, unread: list[_Unread]) -> list[int | None]:
        """Read timestamps, in the order of `unread`, those of each disk in its own threads."""
        loop = asyncio.get_running_loop()
        by_lane: dict[Executor | None, list[_Unread]] = {}
        for each in unread:
            assert each.found.file is not None
            by_lane.setdefault(each.volume.lane(Waits.READ, each.found.file.path), []).append(each)
        pieces = await asyncio.gather(
            *(loop.run_in_executor(lane, _read_timestamps, some) for lane, some in by_lane.items())
        )
        found: dict[int, int | None] = {}
        for some, timestamps in zip(by_lane.values(), pieces, strict=True):
            found.update((each.place, timestamp) for each, timestamp in zip(some, timestamps, strict=True))
        return [found[each.place] for each in unread]

    def _locate(
        self, place: int, partition: Partition, offset: int, now_ms: int, unread: list[_Unread]
    ) -> Lag:
        log = partition.log
        end_offset = log.high_watermark
        messages = max(0, end_offset - offset)
        first = max(offset, log.log_start_offset)
        if first >= end_offset:
            return Lag(end_offset, messages, 0)
        key = (partition.topic_id, partition.index, first)
        timestamp = self._timestamps.get(key)
        if timestamp is not None:
            return Lag(end_offset, messages, _age(timestamp, now_ms))
        try:
            found = log.read(first, 1, end_offset, True)
        except MillraceError:
            return Lag(end_offset, messages, None)
        if found.size_bytes:
            unread.append(_Unread(place, key, first, found, partition.log.home.volume))
        return Lag(end_offset, messages, None)


def _age(timestamp: int, now_ms: int) -> int | None:
    return None if timestamp == NO_TIMESTAMP else max(0, now_ms - timestamp)


def _read_timestamps(unread: Sequence[_Unread]) -> list[int | None]:
    """The first unread records' timestamps. Runs off the loop: disks are slow, and batches compressed."""
    timestamps: list[int | None] = []
    for each in unread:
        try:
            timestamps.append(_first_timestamp(each.found, each.offset))
        except (MillraceError, OSError):
            # The log was compacted, deleted or damaged meanwhile: the next measurement finds out.
            timestamps.append(None)
    return timestamps


def _first_timestamp(found: LogSlice, offset: int) -> int | None:
    assert found.file is not None
    header = read_header(found.file.read_at(found.position, HEADER_SIZE))
    if header.is_log_append_time:
        return header.max_timestamp
    is_whole = header.records_count == header.last_offset_delta + 1
    if header.base_offset >= offset and is_whole and not header.attributes & DELETE_HORIZON_BIT:
        return header.base_timestamp
    for record in read_records(found.read()):
        if record.offset >= offset:
            return record.timestamp
    return header.max_timestamp
