"""Reads the store: all of it in order, for the index, and single messages that are due."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from millrace.core.lanes import Waits
from millrace.log.disk.volume import Volume
from millrace.log.errors import OffsetOutOfRange
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.queues.delayed.codec import MalformedRecord, StoreRecord, decode
from millrace.wire.batch_header import BatchHeader
from millrace.wire.records import check_batch, read_records, split_batches

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

PIECE_BYTES: Final = 256 * 1024
NEAR: Final = 256
"""Messages as near as this to each other are read at once."""
LOCATED_AT_ONCE: Final = 100
"""So many places are looked up before others get their turn of the loop."""


async def off_loop(volume: Volume, path: str, work: Callable[[], T]) -> T:
    """The result of work that may wait for the disk of this path."""
    return await asyncio.get_running_loop().run_in_executor(volume.lane(Waits.FILES, path), work)


def locate(log: PartitionLog, offset: int, end_offset: int, size_bytes: int = PIECE_BYTES) -> LogSlice | None:
    """Where the records from `offset` on are; None if there are none. Reads no data."""
    if offset >= end_offset:
        return None
    found = log.read(offset, size_bytes, end_offset, True)
    return found if found.size_bytes else None


def records_of(
    data: bytes, name: object, wanted: Sequence[int] | None = None
) -> Iterable[tuple[BatchHeader, list[tuple[int, StoreRecord]]]]:
    """What the batches of a slice say, batch by batch; with `wanted`, sorted, only at those offsets. Runs off
    the loop."""
    for batch in split_batches(memoryview(data)):
        header = check_batch(batch)
        records: list[tuple[int, StoreRecord]] = []
        if not header.is_control and (wanted is None or _holds_any(header, wanted)):
            for stored in read_records(batch):
                if wanted is not None and stored.offset not in wanted:
                    continue
                record = _decode(stored.key, stored.value, name, stored.offset)
                if record is not None:
                    records.append((stored.offset, record))
        yield header, records


async def read_at(log: PartitionLog, volume: Volume, offsets: Sequence[int]) -> dict[int, StoreRecord]:
    """The records at these offsets; those that are not there any more are left out."""
    found: dict[int, StoreRecord] = {}
    runs = _runs(sorted(offsets))
    while runs:
        slices: list[tuple[LogSlice, list[int]]] = []
        for number, run in enumerate(runs):
            place = _locate_first(log, run)
            if place is not None:
                slices.append((place, run))
            if number % LOCATED_AT_ONCE == LOCATED_AT_ONCE - 1:
                await asyncio.sleep(0)
        # A slice may end before its run does: what is left is looked up again.
        runs = await off_loop(volume, log.path, partial(_read_slices, slices, log.topic_partition, found))
    return found


def _runs(ordered: Sequence[int]) -> list[list[int]]:
    """Offsets that lie near each other, together."""
    runs: list[list[int]] = []
    for offset in ordered:
        if not runs or offset - runs[-1][-1] > NEAR or len(runs[-1]) >= NEAR:
            runs.append([])
        runs[-1].append(offset)
    return runs


def _locate_first(log: PartitionLog, run: list[int]) -> LogSlice | None:
    """The place of the first offset of a run that is there, with what follows if there is more to be read."""
    while run:
        try:
            return locate(log, run[0], log.high_watermark, 1 if len(run) == 1 else PIECE_BYTES)
        except OffsetOutOfRange:
            del run[0]
    return None


def _read_slices(
    slices: Sequence[tuple[LogSlice, list[int]]], name: object, found: dict[int, StoreRecord]
) -> list[list[int]]:
    """Read what was located; returns what lies behind it."""
    left: list[list[int]] = []
    for place, run in slices:
        reached = run[0]
        for header, records in records_of(place.read(), name, run):
            reached = header.base_offset + header.last_offset_delta
            found.update(records)
        rest = run[max(bisect_right(run, reached), 1) :]
        if rest:
            left.append(rest)
    return left


def _holds_any(header: BatchHeader, wanted: Sequence[int]) -> bool:
    number = bisect_left(wanted, header.base_offset)
    return number < len(wanted) and wanted[number] <= header.base_offset + header.last_offset_delta


def _decode(key: bytes | None, value: bytes | None, name: object, offset: int) -> StoreRecord | None:
    """Decode a record; skip one that nobody can read: it must not keep all others from being delivered."""
    try:
        record = decode(key, value)
    except MalformedRecord as error:
        logger.warning("%s: the record at %d is skipped: %s", name, offset, error)
        return None
    if record is None:
        logger.warning("%s: the record at %d is of a later release and is skipped", name, offset)
    return record
