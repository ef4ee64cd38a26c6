"""What a topic asks of a producer's batch beyond its header: keys, sound records, the topic's compression.

Pure functions, run off the event loop. They look into records, so most topics must never need them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from millrace.log.errors import CorruptBatch, InvalidRecord, UnsupportedBatchFormat
from millrace.wire.batch_header import COMPRESSION_MASK, CRC_START, MAGIC, BatchHeader, read_header
from millrace.wire.compression import CODECS_BY_NAME, Codec
from millrace.wire.record_spans import INT64_MAX, MalformedBatch, scan_records
from millrace.wire.records import assemble_batch, check_batch, inflate_records, split_batches

KEEP_PRODUCERS_CODEC: Final = "producer"
RECORD_ERRORS_MAX: Final = 100
"""Enough to find the cause; a batch of a million bad records must not become a million messages."""


class RecordRules(Protocol):
    """The topic settings that decide how records are checked and stored; `LogConfig` has them all."""

    @property
    def cleanup_compact(self) -> bool: ...
    @property
    def deep_validation(self) -> bool: ...
    @property
    def compression_type(self) -> str: ...
    @property
    def compression_gzip_level(self) -> int: ...
    @property
    def compression_lz4_level(self) -> int: ...
    @property
    def compression_zstd_level(self) -> int: ...
    @property
    def max_decompressed_message_bytes(self) -> int: ...
    @property
    def delayed_delivery_enable(self) -> bool: ...
    @property
    def dedup_window_ms(self) -> int: ...
    @property
    def timestamp_log_append(self) -> bool: ...
    @property
    def timestamp_before_max_ms(self) -> int: ...
    @property
    def timestamp_after_max_ms(self) -> int: ...


class RecordError(NamedTuple):
    """What is wrong with one record, by its place in the partition's records of the request."""

    batch_index: int
    message: str


class InvalidRecords(InvalidRecord):
    """Records that are sound but not allowed in this topic; `record_errors` names them."""

    def __init__(self, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(f"{record_errors[0].message} (record {record_errors[0].batch_index} of the batch)")
        self.record_errors = record_errors


class InvalidRecordTimestamps(InvalidRecords):
    """Timestamps further from the broker's clock than the topic allows."""


def is_preparation_needed(rules: RecordRules) -> bool:
    """Whether any batch for this topic may have to pass `prepare`, or has records that do not stay in it;
    decided once when the settings change."""
    return (
        rules.cleanup_compact
        or rules.deep_validation
        or rules.compression_type != KEEP_PRODUCERS_CODEC
        or may_take_records_out(rules)
    )


def may_take_records_out(rules: RecordRules) -> bool:
    """Whether the topic's settings give headers of records a meaning: such records may not stay."""
    return rules.delayed_delivery_enable or rules.dedup_window_ms > 0


def batch_needs_preparation(rules: RecordRules, attributes: int) -> bool:
    """Whether a batch with these attributes has to pass `prepare`."""
    if rules.cleanup_compact or rules.deep_validation:
        return True
    target = target_codec(rules)
    return target is not None and target != attributes & COMPRESSION_MASK


def target_codec(rules: RecordRules) -> Codec | None:
    """The codec that the topic stores, None if it keeps the producer's."""
    if rules.compression_type == KEEP_PRODUCERS_CODEC:
        return None
    return CODECS_BY_NAME[rules.compression_type]


def compression_level(rules: RecordRules, codec: Codec) -> int | None:
    match codec:
        case Codec.GZIP:
            return rules.compression_gzip_level
        case Codec.LZ4:
            return rules.compression_lz4_level
        case Codec.ZSTD:
            return rules.compression_zstd_level
        case Codec.NONE | Codec.SNAPPY:
            return None


def prepare(records: memoryview, rules: RecordRules, *, now_ms: int) -> memoryview:
    """A partition's records of a Produce request, checked, recompressed and writable, for `append_as_leader`.

    Returns the same view if nothing had to change. Raises CorruptBatch for bytes damaged on the way, else
    UnsupportedBatchFormat, MalformedBatch, DecompressedTooLarge, InvalidRecords or InvalidRecordTimestamps;
    the last two name the records.
    """
    try:
        batches = split_batches(records)
    except MalformedBatch as error:
        raise CorruptBatch(str(error)) from None
    prepared = []
    first_index = 0
    for batch in batches:
        header = _check_header(batch)
        prepared.append(_prepare_batch(batch, header, rules, now_ms, first_index))
        first_index += header.records_count
    if all(after is before for before, after in zip(batches, prepared, strict=True)):
        return records
    return memoryview(bytearray().join(prepared))


def _check_header(batch: memoryview) -> BatchHeader:
    """The header, judged as in an append: of all faults, only a wrong checksum may be gone if sent again."""
    header = read_header(batch)
    if header.magic != MAGIC:
        raise UnsupportedBatchFormat(header.magic)
    if header.crc != crc32c(batch[CRC_START:]):
        raise CorruptBatch("the checksum of the record batch is wrong")
    return check_batch(batch)


def _prepare_batch(
    batch: memoryview, header: BatchHeader, rules: RecordRules, now_ms: int, first_index: int
) -> memoryview | bytes:
    # Appending refuses control batches from clients; their records follow other rules than a topic's.
    if header.is_control or not batch_needs_preparation(rules, header.attributes):
        return batch
    data = inflate_records(batch, header, rules.max_decompressed_message_bytes)
    checked = header
    if rules.cleanup_compact or rules.deep_validation:
        checked = _check_records(data, header, rules, now_ms, first_index)
    target = target_codec(rules)
    source = Codec(header.compression)
    if checked is header and target in (None, source):
        return batch
    codec = source if target is None else target
    return assemble_batch(checked, data, codec, compression_level(rules, codec))


def _check_records(
    data: bytes | bytearray, header: BatchHeader, rules: RecordRules, now_ms: int, first_index: int
) -> BatchHeader:
    """Check all records; returns the header with the true maximum timestamp, itself if that was right."""
    needs_key = rules.cleanup_compact
    base_timestamp = header.base_timestamp
    newest_delta, oldest_delta = -(2**63), 2**63
    keyless: list[int] = []
    index = 0
    for index, span in enumerate(scan_records(data, header)):
        offset_delta, timestamp_delta, key_start, _, _, _, _ = span
        if offset_delta != index:
            raise MalformedBatch(
                "offset deltas are not consecutive", base_offset=header.base_offset, record_index=index
            )
        if timestamp_delta > newest_delta:
            newest_delta = timestamp_delta
        if timestamp_delta < oldest_delta:
            oldest_delta = timestamp_delta
        if needs_key and key_start < 0:
            keyless.append(index)
    if keyless:
        message = "a compacted topic accepts no record without a key"
        raise InvalidRecords(
            tuple(RecordError(first_index + place, message) for place in keyless[:RECORD_ERRORS_MAX])
        )
    if header.records_count == 0 or rules.timestamp_log_append:
        return header
    if not _is_timely(base_timestamp + oldest_delta, base_timestamp + newest_delta, rules, now_ms):
        raise InvalidRecordTimestamps(_find_untimely(data, header, rules, now_ms, first_index))
    newest = base_timestamp + newest_delta
    if newest > INT64_MAX:
        raise MalformedBatch("timestamp out of range", base_offset=header.base_offset)
    return header if newest == header.max_timestamp else header._replace(max_timestamp=newest)


def _is_timely(oldest: int, newest: int, rules: RecordRules, now_ms: int) -> bool:
    return (
        now_ms - oldest <= rules.timestamp_before_max_ms and newest - now_ms <= rules.timestamp_after_max_ms
    )


def _find_untimely(
    data: bytes | bytearray, header: BatchHeader, rules: RecordRules, now_ms: int, first_index: int
) -> tuple[RecordError, ...]:
    errors = []
    for index, (_, timestamp_delta, _, _, _, _, _) in enumerate(scan_records(data, header)):
        timestamp = header.base_timestamp + timestamp_delta
        if not _is_timely(timestamp, timestamp, rules, now_ms):
            errors.append(
                RecordError(
                    first_index + index,
                    f"timestamp {timestamp} is outside the allowed range: at most"
                    f" {rules.timestamp_before_max_ms} ms before or"
                    f" {rules.timestamp_after_max_ms} ms after {now_ms}",
                )
            )
            if len(errors) == RECORD_ERRORS_MAX:
                break
    return tuple(errors)
