"""Batches with fewer records: what is left keeps its offsets, and the header says the same as before.

This is what compaction leaves behind, so every reader of logs knows it: base offset, last offset, producer,
epoch and sequence stay as they were, and a batch without any record is its header alone. Pure functions, run
off the event loop.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from millrace.wire.batch_header import DELETE_HORIZON_BIT, NO_TIMESTAMP, BatchHeader
from millrace.wire.compression import Codec
from millrace.wire.record_spans import RecordSpan, scan_records
from millrace.wire.records import assemble_batch, check_batch, inflate_records


def thin(batch: memoryview, taken: Container[int], *, limit_bytes: int, level: int | None = None) -> bytes:
    """The batch without the records whose offset deltas are `taken`, in the same codec.

    `level` is the codec's. Raises MalformedBatch, or DecompressedTooLarge beyond `limit_bytes`.
    """
    header = check_batch(batch)
    data = bytes(inflate_records(batch, header, limit_bytes))
    # The offset delta stands first in a span.
    kept = [span for span in scan_records(data, header) if span[0] not in taken]
    return without_records(data, header, kept, level)


def without_records(data: bytes, header: BatchHeader, kept: Sequence[RecordSpan], level: int | None) -> bytes:
    """A batch of the kept ones among the inflated records, which may be none."""
    if not kept:
        return emptied(header)
    codec = Codec(header.compression)
    return assemble_batch(
        header._replace(max_timestamp=newest_timestamp(header, kept), records_count=len(kept)),
        b"".join([data[start:end] for _, _, _, _, _, start, end in kept]),
        codec,
        level,
    )


def newest_timestamp(header: BatchHeader, kept: Sequence[RecordSpan]) -> int:
    """The largest timestamp of those that stay; the batch's own where the broker has given it one."""
    if header.is_log_append_time:
        return header.max_timestamp
    return header.base_timestamp + max(timestamp_delta for _, timestamp_delta, _, _, _, _, _ in kept)


def emptied(header: BatchHeader) -> bytes:
    """The header alone: offsets, producer and sequence without any record."""
    return assemble_batch(
        header._replace(
            attributes=header.attributes & ~DELETE_HORIZON_BIT,
            base_timestamp=NO_TIMESTAMP,
            records_count=0,
        ),
        b"",
    )
