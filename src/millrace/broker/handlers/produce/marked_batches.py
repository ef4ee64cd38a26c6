"""Batches for topics that give headers of records a meaning (`queues/marked_records.py`): the look into them,
and what becomes of the records that do not stay in their batch.

The batch that reaches the log is thinned, with the offsets and sequence numbers of the whole. So the offsets
that producers are told are real, a batch that is sent again is known, and only afterwards is it known under
which id a delayed record is stored. Its producer is told of success when both are safe. If the broker dies in
between, the producer has no answer and sends the batch again; then the log says which of its records are
missing there, and those are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, NamedTuple

from millrace.core.lanes import Waits
from millrace.log.batches.checks import check_sent
from millrace.log.batches.thinning import thin
from millrace.log.batches.validation import compression_level, may_take_records_out, prepare
from millrace.log.config import LogConfig
from millrace.log.errors import OffsetOutOfRange
from millrace.queues.delayed.model import DelayedRecord
from millrace.queues.marked_records import NO_MARKS, Marks, Scheduled, find_marks
from millrace.wire.batch_header import read_header
from millrace.wire.compression import Codec
from millrace.wire.record_spans import scan_records
from millrace.wire.records import check_batch, inflate_records, split_batches

if TYPE_CHECKING:
    from millrace.log.partition.appending import Appended
    from millrace.log.partition.log_slice import LogSlice
    from millrace.replica.partition import Partition


class Looked(NamedTuple):
    """A batch that was looked into."""

    records: memoryview
    """What belongs into the log; writable."""
    marks: Marks = NO_MARKS
    is_thinned: bool = False


def look_into(records: memoryview, rules: LogConfig, *, now_ms: int, has_marks: bool) -> Looked:
    """Check a batch as its topic demands (`validation.prepare`), and take delayed records out. Runs in a
    thread."""
    ready = prepare(records, rules, now_ms=now_ms)
    if not has_marks or not may_take_records_out(rules):
        return Looked(ready)
    marks = find_marks(ready, rules, now_ms=now_ms)
    if not marks.scheduled:
        return Looked(ready, marks)
    check_sent(ready, now_ms, rules)
    return Looked(thinned(ready, [each.delta for each in marks.scheduled], rules), marks, True)


def thinned(batch: memoryview, taken: Iterable[int], rules: LogConfig) -> memoryview:
    """A writable batch without some of its records. Runs in a thread."""
    level = compression_level(rules, Codec(read_header(batch).compression))
    gone = dict.fromkeys(taken)
    return memoryview(
        bytearray(thin(batch, gone, limit_bytes=rules.max_decompressed_message_bytes, level=level))
    )


def delayed_records(
    partition: Partition, scheduled: Iterable[Scheduled], appended: Appended, *, without: Container[int] = ()
) -> list[DelayedRecord]:
    """The records for the store, under the ids that their batch got by being appended."""
    return [
        DelayedRecord(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.index,
            offset=appended.base_offset + each.delta,
            due_ms=each.due_ms,
            produced_ms=each.produced_ms,
            key=each.key,
            value=each.value,
            headers=each.headers,
            replaces=each.replaces,
            is_cancellation=each.is_cancellation,
            is_repeated=appended.duplicate,
        )
        for each in scheduled
        if each.delta not in without
    ]


async def places_in_log(partition: Partition, appended: Appended) -> Container[int]:
    """Which records of a batch that was appended before are in the log: by now some may have come due, and
    stand in a batch that is sent again as if they had always belonged there."""
    log = partition.log
    try:
        found = log.read(appended.base_offset, 1, log.log_end_offset, True)
    except OffsetOutOfRange:
        # So old that retention has taken it: its records were stored long ago.
        return range(appended.last_offset - appended.base_offset + 1)
    lane = log.home.volume.lane(Waits.READ, log.path)
    limit = log.config.max_decompressed_message_bytes
    return await asyncio.get_running_loop().run_in_executor(lane, _places, found, limit)


def _places(found: LogSlice, limit_bytes: int) -> Container[int]:
    batch = split_batches(memoryview(found.read()))[0]
    header = check_batch(batch)
    spans = scan_records(bytes(inflate_records(batch, header, limit_bytes)), header)
    return dict.fromkeys(delta for delta, _, _, _, _, _, _ in spans)
