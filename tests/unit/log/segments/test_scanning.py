"""Good batches are told from damaged ones by their checksums and by their neighbours."""

from __future__ import annotations

import struct

from millrace.log.segments.quarantine import DamagedRange, behind_damage, bytes_to_skip
from millrace.log.segments.scanning import NO_BOUND, BatchReader
from millrace.wire.batch_header import BatchHeader
from tests.unit.log.support import batch_of

SIZE = len(batch_of(b"0"))


def file_of(count: int) -> bytearray:
    return bytearray(
        b"".join(
            bytes(batch_of(b"%d" % offset, base_offset=offset, leader_epoch=0)) for offset in range(count)
        )
    )


def reader_of(data: bytes | bytearray, upper_offset: int = NO_BOUND) -> BatchReader:
    content = bytes(data)
    return BatchReader(
        lambda position, size_bytes: content[position : position + size_bytes],
        base_offset=0,
        size_bytes=len(content),
        upper_offset=upper_offset,
    )


def test_a_sound_batch_has_the_right_offset_and_checksum() -> None:
    data = file_of(3)
    fields = reader_of(data).sound_batch(SIZE, next_offset=1)
    assert fields is not None
    assert BatchHeader._make(fields).base_offset == 1
    assert reader_of(data).sound_batch(SIZE, next_offset=2) is None, "it begins before what was there"
    assert reader_of(data, upper_offset=1).sound_batch(SIZE, next_offset=1) is None, "the next segment's"
    data[2 * SIZE - 1] ^= 1
    assert reader_of(data).sound_batch(SIZE, next_offset=1) is None


def test_an_offset_that_the_checksum_does_not_cover_is_judged_by_the_next_batch() -> None:
    data = file_of(3)
    struct.pack_into(">q", data, SIZE, 7)
    assert reader_of(data).sound_batch(SIZE, next_offset=1) is None
    # As the last batch there is nobody to contradict it: compaction leaves such gaps.
    assert reader_of(data[: 2 * SIZE]).sound_batch(SIZE, next_offset=1) is not None


def test_damage_reaches_to_the_next_good_batch_or_to_the_end() -> None:
    data = file_of(5)
    for position in (SIZE + 30, 2 * SIZE + 30):
        data[position] ^= 1
    assert reader_of(data).damage_at(SIZE, next_offset=1) == DamagedRange(SIZE, 2 * SIZE, 1, 3)
    data[3 * SIZE + 30] ^= 1
    data[4 * SIZE + 30] ^= 1
    to_the_end = DamagedRange(SIZE, 4 * SIZE, 1, 9)
    assert reader_of(data, upper_offset=9).damage_at(SIZE, next_offset=1) == to_the_end


def test_good_batches_are_found_behind_a_length_that_is_wrong() -> None:
    data = file_of(4)
    struct.pack_into(">i", data, SIZE + 8, 5)
    assert reader_of(data).find_sound_batch(SIZE, next_offset=1) == 2 * SIZE


def test_readers_skip_damaged_bytes_and_never_stand_still() -> None:
    damage = (DamagedRange(100, 50, 1, 3), DamagedRange(400, 0, 9, 12))
    assert bytes_to_skip(damage) == {100: 50}
    assert [behind_damage(damage, position) for position in (99, 100, 149, 150, 400)] == [
        (99, False),
        (150, True),
        (150, True),
        (150, False),
        (400, False),
    ]
