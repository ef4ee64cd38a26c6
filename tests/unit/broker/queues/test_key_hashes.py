"""Keys of batches as numbers: the same for the same key, none for none."""

from __future__ import annotations

from typing import Any, cast

from millrace.broker.queues.batch_headers import FoundBatch
from millrace.broker.queues.key_hashes import hashes_of
from millrace.queues.share_partition.key_order import NO_KEY
from millrace.wire.compression import Codec
from millrace.wire.records import Record, build_batch


class FakeFile:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes]


def batch(
    data: bytes, first: int, last: int, *, is_known: bool = True, is_control: bool = False
) -> FoundBatch:
    source = cast("Any", type("Source", (), {"file": FakeFile(b"before" + data)}))
    return FoundBatch(first, last, 0, len(data), 6, source, data if is_known else None, -1, is_control)


def records(*keys: bytes | None, first: int = 0, codec: Codec = Codec.NONE) -> bytes:
    found = [Record(first + number, 0, key, b"v") for number, key in enumerate(keys)]
    return build_batch(found, base_offset=first, codec=codec)


def test_equal_keys_have_equal_hashes_in_all_batches() -> None:
    first, second = records(b"a", None, b"b", b"a"), records(b"b", b"", first=10, codec=Codec.GZIP)
    (one_at, one), (two_at, two) = hashes_of([batch(first, 0, 3), batch(second, 10, 11, is_known=False)])
    assert (one_at, two_at) == (0, 10)
    assert one[0] == one[3] != one[2]
    assert one[1] == NO_KEY
    assert two[0] == one[2]
    assert two[1] not in (NO_KEY, *one), "an empty key is a key"


def test_offsets_that_compaction_took_have_no_key() -> None:
    data = build_batch([Record(2, 0, b"a", b"v")], base_offset=0, last_offset=4)
    ((_, hashes),) = hashes_of([batch(data, 0, 4)])
    assert [number == NO_KEY for number in hashes] == [True, True, False, True, True]


def test_markers_and_what_cannot_be_read_have_no_keys() -> None:
    data = records(b"a", b"b")
    broken = data[:-3] + b"xyz"
    found = hashes_of([batch(data, 0, 1, is_control=True), batch(broken[:-1], 2, 3)])
    assert [list(hashes) for _, hashes in found] == [[NO_KEY] * 2, [NO_KEY] * 2]
