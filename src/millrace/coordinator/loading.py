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
from millrace.log.partition_log import PartitionLog
from millrace.log.segment import LogSlice
from millrace.wire.records import ControlType, check_batch, read_control_marker, read_records, split_batches

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 256 * 1024
"""So much is applied on the loop at a time: some milliseconds."""


class Piece(NamedTuple):
    records: list[Applied]
    next_offset: int
    size_bytes: int


class LogReader:
    """Goes through a log from its start."""

    def __init__(self, partition_log: PartitionLog, codec: RecordCodec) -> None:
        self._log = partition_log
        self._codec = codec

    def locate(self, offset: int, end_offset: int) -> LogSlice | None:
        """Where the records from `offset` on are; None if none are committed. On the loop, reads no data."""
        if offset >= end_offset:
            return None
        found = self._log.read(max(offset, self._log.log_start_offset), PIECE_BYTES, end_offset, True)
        return found if found.size_bytes else None

    def read(self, found: LogSlice, offset: int) -> Piece:
        """The records of a slice from `offset` on. Off the loop."""
        return self._decode(found.read(), offset)

    def _decode(self, data: bytes, offset: int) -> Piece:
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
                record = self._decode_record(stored.key, stored.value, stored.offset)
                if record is None or stored.offset < offset:
                    continue
                if header.is_transactional:
                    records.append(TransactionalRecord(header.producer_id, record))
                else:
                    records.append(record)
        return Piece(records, next_offset, len(data))

    def _decode_record(self, key: bytes | None, value: bytes | None, offset: int) -> Record | None:
        """A record that nobody can read is skipped: it must not keep all others from being loaded."""
        try:
            record = None if key is None else self._codec.decode(key, value)
        except MillraceError as error:
            log.warning("%s: skipping the record at %d: %s", self._log.topic_partition, offset, error)
            return None
        if record is None:
            log.warning(
                "%s: skipping the record at %d, which is of an unknown type",
                self._log.topic_partition,
                offset,
            )
        return record
