"""Reads an internal partition back into records, a piece at a time."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from millrace.coordinator.decision import (
    Applied,
    Record,
    RecordCodec,
    TransactionalRecord,
    TransactionEnded,
)
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.partition.log_slice import LogSlice
from millrace.log.partition.partition_log import PartitionLog
from millrace.wire.records import ControlType, check_batch, read_control_marker, read_records, split_batches
from millrace.wire.records import Record as StoredRecord

logger: Final = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 * 1024
"""How much is applied on the loop at a time, which takes some milliseconds."""


class Piece(NamedTuple):
    """Some of a partition's records, and where the next piece begins."""

    records: list[Applied]
    next_offset: int
    size_bytes: int


def locate(log: PartitionLog, offset: int, end_offset: int) -> LogSlice | None:
    """Where the records from `offset` on are; None if none of them is committed. Reads no data, so the loop
    may call it."""
    if offset >= end_offset:
        return None
    found = log.read(max(offset, log.log_start_offset), PIECE_BYTES, end_offset, True)
    return found if found.size_bytes else None


def read(found: LogSlice, offset: int, codec: RecordCodec, name: TopicPartition) -> Piece:
    """The records of a slice of the log, from `offset` on. Runs in a thread."""
    data = found.read()
    records: list[Applied] = []
    next_offset = offset
    for batch in split_batches(memoryview(data)):
        header = check_batch(batch)
        next_offset = header.base_offset + header.last_offset_delta + 1
        if header.is_control:
            for stored in read_records(batch):
                marker = read_control_marker(stored.key, stored.value)
                if marker is not None:
                    is_commit = marker.type == ControlType.COMMIT
                    records.append(TransactionEnded(header.producer_id, is_commit))
            continue
        for stored in read_records(batch):
            record = _decode(codec, stored, name)
            if record is None or stored.offset < offset:
                continue
            if header.is_transactional:
                records.append(TransactionalRecord(header.producer_id, record))
            else:
                records.append(record)
    return Piece(records, next_offset, len(data))


def _decode(codec: RecordCodec, stored: StoredRecord, name: TopicPartition) -> Record | None:
    """Decode a record; skip one that nobody can read: it must not keep all others from being loaded."""
    try:
        record = None if stored.key is None else codec.decode(stored.key, stored.value)
    except MillraceError as error:
        logger.warning("%s: the record at %d is skipped: %s", name, stored.offset, error)
        return None
    if record is None:
        logger.warning("%s: the record at %d is skipped, because its type is unknown", name, stored.offset)
    return record
