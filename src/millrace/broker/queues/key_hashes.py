"""The keys of record batches as numbers, for groups that want the records of a key one after another.

Batches are looked into, so this is work for threads; each is looked into once while it is in a group's
window."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from millrace.broker.queues.batch_headers import FoundBatch
from millrace.core.errors import MillraceError
from millrace.log.partition.log_slice import LogSlice
from millrace.queues.share_partition.key_order import NO_KEY
from millrace.wire.record_spans import scan_records
from millrace.wire.records import check_batch, inflate_records

Hashes = list[tuple[int, "array[int]"]]


def hashes_of(batches: Sequence[FoundBatch]) -> Hashes:
    """First offset and hashes of each batch, to be called off the loop. A batch that cannot be read has no
    keys: its members will find out what is wrong with it."""
    found: Hashes = []
    for batch in batches:
        hashes = array("q", [NO_KEY]) * (batch.last_offset - batch.first_offset + 1)
        if not batch.is_control:
            try:
                _fill(hashes, _data(batch))
            except MillraceError:
                hashes = array("q", [NO_KEY]) * len(hashes)
        found.append((batch.first_offset, hashes))
    return found


def _data(batch: FoundBatch) -> bytes:
    if batch.data is not None:
        return batch.data
    return LogSlice(batch.source.file, batch.position, batch.size_bytes, False).read()


def _fill(hashes: array[int], data: bytes) -> None:
    header = check_batch(data)
    records = bytes(inflate_records(data, header))
    for offset_delta, _, key_start, key_end, _, _, _ in scan_records(records, header):
        if key_start >= 0:
            # A key whose hash happens to be that of no key gets its neighbour.
            hashes[offset_delta] = hash(records[key_start:key_end]) or 1
