"""Decides what is left of one batch when its log is compacted, and builds what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.log.batches.thinning import emptied, newest_timestamp, without_records
from millrace.log.cleaning.cleaned_transactions import CleanedTransactions
from millrace.log.cleaning.key_offsets import KEY_BYTES_MAX, KeyOffsets, shortened
from millrace.wire.batch_header import DELETE_HORIZON_BIT, BatchHeader
from millrace.wire.compression import Codec
from millrace.wire.record_spans import RecordSpan, append_varint, read_varint, scan_records
from millrace.wire.records import assemble_batch, inflate_records


@dataclass(slots=True)
class CompactionStats:
    """What one compaction read, kept and dropped."""

    bytes_mapped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    records_without_key: int = 0
    tombstones_removed: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOfProducer:
    """The last thing an active producer wrote: its last data offset, -1 if only a marker is left."""

    last_data_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """What a compaction's filter goes by beside keys and transactions."""

    now_ms: int
    delete_retention_ms: int
    end_offset: int
    """The first offset that must not be touched."""
    max_decompressed_bytes: int
    compression_levels: Mapping[int, int]


class BatchFilter:
    """Takes every batch of the range in offset order, and says what is left of it."""

    def __init__(
        self,
        keys: KeyOffsets,
        transactions: CleanedTransactions,
        stats: CompactionStats,
        rules: FilterRules,
        producers: Mapping[int, LastOfProducer],
    ) -> None:
        self._keys = keys
        self._transactions = transactions
        self._stats = stats
        self._rules = rules
        self._now_ms = rules.now_ms
        self._producers = producers

    def filter(self, batch: memoryview, header: BatchHeader) -> memoryview | bytes | None:
        """The batch itself, a smaller one with the same offsets, or None if nothing has to stay."""
        stats = self._stats
        stats.bytes_read += len(batch)
        stats.records_read += header.records_count
        kept = self._filter_control(batch, header) if header.is_control else self._filter_data(batch, header)
        if kept is None and self._must_stay(header):
            kept = emptied(header)
        if kept is not None:
            stats.bytes_written += len(kept)
        return kept

    def _filter_control(self, batch: memoryview, header: BatchHeader) -> memoryview | bytes | None:
        removable = self._transactions.is_marker_removable(batch, header)
        if header.records_count == 0:
            return None
        horizon = _delete_horizon(header)
        if removable and horizon is not None and horizon <= self._now_ms:
            return None
        self._stats.records_written += header.records_count
        if removable and horizon is None:
            # Readers may still be behind the marker: like a tombstone, it outlives its use for a while.
            data = bytes(inflate_records(batch, header, self._rules.max_decompressed_bytes))
            return self._rebuild(data, header, list(scan_records(data, header)), set_horizon=True)
        return batch

    def _filter_data(self, batch: memoryview, header: BatchHeader) -> memoryview | bytes | None:
        if self._transactions.is_aborted(header) or header.records_count == 0:
            return None
        if header.base_offset > self._keys.latest_offset:
            self._stats.records_written += header.records_count
            return batch
        data = bytes(inflate_records(batch, header, self._rules.max_decompressed_bytes))
        horizon = _delete_horizon(header)
        kept, has_tombstones = self._newest_records(data, header, horizon)
        self._stats.records_written += len(kept)
        set_horizon = has_tombstones and horizon is None
        if len(kept) == header.records_count and not set_horizon:
            return batch
        return self._rebuild(data, header, kept, set_horizon=set_horizon) if kept else None

    def _newest_records(
        self, data: bytes, header: BatchHeader, horizon: int | None
    ) -> tuple[list[RecordSpan], bool]:
        newest = self._keys.by_key.get
        latest_offset = self._keys.latest_offset
        base_offset = header.base_offset
        keep_tombstones = horizon is None or self._now_ms < horizon
        kept: list[RecordSpan] = []
        has_tombstones = False
        for span in scan_records(data, header):
            offset_delta, _, key_start, key_end, is_tombstone, _, _ = span
            offset = base_offset + offset_delta
            if offset <= latest_offset:
                if key_start < 0:
                    self._stats.records_without_key += 1
                    continue
                key = data[key_start:key_end]
                if offset < newest(key if len(key) <= KEY_BYTES_MAX else shortened(key), -1):
                    continue
                if is_tombstone and not keep_tombstones:
                    self._stats.tombstones_removed += 1
                    continue
            if is_tombstone:
                has_tombstones = True
            kept.append(span)
        return kept, has_tombstones

    def _must_stay(self, header: BatchHeader) -> bool:
        """Whether the batch's header says something that nothing else in the log does."""
        if header.next_offset == self._rules.end_offset:
            return True
        last = self._producers.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _rebuild(
        self, data: bytes, header: BatchHeader, kept: list[RecordSpan], *, set_horizon: bool
    ) -> bytes:
        codec = Codec(header.compression)
        level = self._rules.compression_levels.get(codec)
        if not set_horizon:
            return without_records(data, header, kept, level)
        base_timestamp = self._now_ms + self._rules.delete_retention_ms
        return assemble_batch(
            header._replace(
                attributes=header.attributes | DELETE_HORIZON_BIT,
                base_timestamp=base_timestamp,
                max_timestamp=newest_timestamp(header, kept),
                records_count=len(kept),
            ),
            _shift_timestamps(data, kept, header.base_timestamp - base_timestamp),
            codec,
            level,
        )


def _delete_horizon(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def _shift_timestamps(data: bytes, kept: list[RecordSpan], shift: int) -> bytes:
    """The records with other timestamp deltas: the batch's base timestamp becomes its delete horizon."""
    output = bytearray()
    for _, timestamp_delta, _, _, _, start, end in kept:
        _, attributes_at = read_varint(data, start)
        _, rest_at = read_varint(data, attributes_at + 1, 10)
        body = bytearray(data[attributes_at : attributes_at + 1])
        append_varint(body, timestamp_delta + shift)
        body += data[rest_at:end]
        append_varint(output, len(body))
        output += body
    return bytes(output)
