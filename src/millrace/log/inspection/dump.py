"""Shows what stored files say, as plain rows for tables or JSON lines. Read-only; `verify` is the judge."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any, Final

from millrace.core.ids import format_topic_id
from millrace.log.batches.reader import read_batches
from millrace.log.disk.volume import Volume
from millrace.log.inspection.stored_files import FileKind, StoredFile, find_files, read_checkpoint
from millrace.log.segments import checkpoints
from millrace.log.segments.offset_index import ENTRY as OFFSET_ENTRY
from millrace.log.segments.quarantine import load_damage
from millrace.log.segments.time_index import ENTRY as TIME_ENTRY
from millrace.log.segments.txn_index import TxnIndex
from millrace.log.state.producer_state import decode_snapshot
from millrace.wire.batch_header import DELETE_HORIZON_BIT, BatchHeader, read_header
from millrace.wire.compression import CODEC_NAMES, Codec, DecompressedTooLarge
from millrace.wire.record_spans import MalformedBatch
from millrace.wire.records import ControlType, Record, check_batch, read_control_marker, read_records

Row = dict[str, Any]
"""Always has `type` and `file`; values are what JSON can say: bytes become text or, if they are not text,
base64."""

_CONTROL_NAMES: Final = {ControlType.ABORT: "abort", ControlType.COMMIT: "commit"}


def dump(volume: Volume, path: str, *, with_records: bool = False) -> Iterator[Row]:
    """Rows of every known file below a data directory, a partition directory, or of one file."""
    for file in find_files(volume, path):
        yield from dump_file(volume, file, with_records=with_records)


def dump_file(volume: Volume, file: StoredFile, *, with_records: bool = False) -> Iterator[Row]:
    """Rows of one file. Damage becomes a row of type `damage`; what lies behind it is not guessed at."""
    match file.kind:
        case FileKind.LOG:
            yield from _dump_log(volume, file, with_records=with_records)
        case FileKind.OFFSET_INDEX:
            for relative, position in _entries(volume, file, OFFSET_ENTRY.size):
                yield _row(file, "offset-index", offset=_absolute(file, relative), position=position)
        case FileKind.TIME_INDEX:
            for timestamp, relative in _entries(volume, file, TIME_ENTRY.size):
                yield _row(file, "time-index", timestamp=timestamp, offset=_absolute(file, relative))
        case FileKind.TXN_INDEX:
            for aborted in TxnIndex(volume.file(file.path)).all_aborted():
                yield _row(file, "aborted-transaction", **aborted._asdict())
        case FileKind.SNAPSHOT:
            yield from _dump_snapshot(volume, file)
        case FileKind.LEADER_EPOCHS | FileKind.OFFSET_CHECKPOINT:
            yield from _dump_checkpoint(volume, file)
        case FileKind.PARTITION_METADATA:
            topic_id = checkpoints.read_partition_metadata(volume, file.directory)
            if topic_id is None:
                yield _row(file, "damage", what="no partition metadata")
            else:
                yield _row(file, "partition-metadata", topic_id=format_topic_id(topic_id))
        case FileKind.PROPERTIES:
            pairs = checkpoints.read_properties(volume, file.path) or {}
            yield _row(file, "properties", **{key: pairs[key] for key in sorted(pairs)})
        case FileKind.QUARANTINE:
            for damaged in load_damage(volume, file.path) or ():
                yield _row(file, "quarantine", **damaged._asdict())
        case FileKind.OTHER:
            return


def _dump_log(volume: Volume, file: StoredFile, *, with_records: bool) -> Iterator[Row]:
    position = 0
    try:
        for position, batch in read_batches(volume.file(file.path), file.size_bytes):
            header = read_header(batch)
            is_sound = _is_sound(batch)
            yield _row(file, "batch", position=position, **_batch_fields(header, is_sound=is_sound))
            if with_records and is_sound:
                yield from _dump_records(file, batch, header)
    except MalformedBatch as error:
        yield _row(file, "damage", position=position, what=str(error))


def _is_sound(batch: memoryview) -> bool:
    try:
        check_batch(batch)
    except MalformedBatch:
        return False
    return True


def _batch_fields(header: BatchHeader, *, is_sound: bool) -> Row:
    codec = header.compression
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.records_count,
        "size_bytes": header.size_bytes,
        "leader_epoch": header.leader_epoch,
        "magic": header.magic,
        "compression": CODEC_NAMES[Codec(codec)] if codec in CODEC_NAMES else str(codec),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon": header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None,
        "crc": header.crc,
        "is_sound": is_sound,
    }


def _dump_records(file: StoredFile, batch: memoryview, header: BatchHeader) -> Iterator[Row]:
    try:
        records = read_records(batch)
    except (MalformedBatch, DecompressedTooLarge) as error:
        yield _row(file, "damage", what=str(error))
        return
    for record in records:
        if header.is_control:
            yield _row(file, "control-record", offset=record.offset, **_control_fields(record))
        else:
            yield _row(
                file,
                "record",
                offset=record.offset,
                timestamp=record.timestamp,
                **_text_fields("key", record.key),
                **_text_fields("value", record.value),
                headers=[
                    {"name": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")}
                    | _text_fields("value", value)
                    for name, value in record.headers
                ],
            )


def _control_fields(record: Record) -> Row:
    try:
        marker = read_control_marker(record.key, record.value)
    except MalformedBatch as error:
        return {"control": "damaged", "what": str(error)}
    if marker is None:
        return {"control": "other"}
    return {"control": _CONTROL_NAMES[marker.type], "coordinator_epoch": marker.coordinator_epoch}


def _text_fields(name: str, data: bytes | None) -> Row:
    """Text as it is; other bytes as base64 under `<name>_base64`, so that nothing is lost or invented."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _dump_snapshot(volume: Volume, file: StoredFile) -> Iterator[Row]:
    states = decode_snapshot(volume.read_bytes(file.path), now_ms=0)
    if states is None:
        yield _row(file, "damage", what="not a whole producer snapshot")
        return
    for producer_id, entry in states.entries.items():
        yield _row(
            file,
            "producer",
            producer_id=producer_id,
            epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_offset=entry.last_offset,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=entry.current_txn_first_offset,
        )


def _dump_checkpoint(volume: Volume, file: StoredFile) -> Iterator[Row]:
    rows = read_checkpoint(volume, file)
    if rows is None:
        yield _row(file, "damage", what="not a whole checkpoint")
        return
    for topic, number, offset in rows:
        if file.kind is FileKind.LEADER_EPOCHS:
            yield _row(file, "leader-epoch", epoch=number, start_offset=offset)
        else:
            yield _row(file, "checkpoint", topic=topic, partition=number, offset=offset)


def _entries(volume: Volume, file: StoredFile, entry_size: int) -> list[tuple[int, int]]:
    """The entries of an index, without the zeros that Kafka leaves at the end of one it did not close."""
    data = volume.read_bytes(file.path)
    data = data[: len(data) // entry_size * entry_size]
    entry = OFFSET_ENTRY if entry_size == OFFSET_ENTRY.size else TIME_ENTRY
    entries = [(first, second) for first, second in entry.iter_unpack(data)]
    while len(entries) > 1 and entries[-1] == (0, 0):
        entries.pop()
    return [] if entries == [(0, 0)] and len(data) > entry_size else entries


def _absolute(file: StoredFile, relative: int) -> int:
    return max(file.base_offset, 0) + relative


def _row(file: StoredFile, row_type: str, /, **fields: Any) -> Row:
    return {"type": row_type, "file": f"{os.path.basename(file.directory)}/{file.name}", **fields}
