"""Batches with fewer records, against a decoder that reads them one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.log.batches.thinning import thin
from millrace.wire.compression import CODEC_NAMES, Codec, DecompressedTooLarge
from millrace.wire.records import MalformedBatch, Record, build_batch, check_batch, read_records

LIMIT = 1_000_000
NOW = 1_700_000_000_000

HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=10))), max_size=3
).map(tuple)
BODIES = st.tuples(
    st.integers(-100_000, 100_000),
    st.one_of(st.none(), st.binary(max_size=200)),
    st.one_of(st.none(), st.binary(max_size=300)),
    HEADERS,
)


@given(
    bodies=st.lists(BODIES, min_size=1, max_size=12),
    taken=st.sets(st.integers(0, 12)),
    codec=st.sampled_from(Codec),
    base_offset=st.sampled_from([0, 7, 2**40]),
    append_time_ms=st.sampled_from([None, NOW]),
    transactional=st.booleans(),
)
def test_what_stays_is_the_same_and_so_is_what_the_header_says(
    bodies: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    taken: set[int],
    codec: Codec,
    base_offset: int,
    append_time_ms: int | None,
    transactional: bool,
) -> None:
    records = [
        Record(base_offset + delta, NOW + time_delta, key, value, headers)
        for delta, (time_delta, key, value, headers) in enumerate(bodies)
    ]
    batch = build_batch(
        records,
        codec=codec,
        leader_epoch=3,
        producer_id=9,
        producer_epoch=2,
        base_sequence=2**31 - 3,
        append_time_ms=append_time_ms,
        transactional=transactional,
    )
    thinned = thin(memoryview(batch), taken, limit_bytes=LIMIT)
    # This checks the checksum.
    before, after = check_batch(batch), check_batch(thinned)
    left = [record for record in read_records(batch) if record.offset - base_offset not in taken]
    assert read_records(thinned) == left
    assert after.records_count == len(left)
    for field in (
        "base_offset",
        "last_offset_delta",
        "leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "is_transactional",
        "is_log_append_time",
    ):
        assert getattr(after, field) == getattr(before, field), field
    if left:
        assert after.compression == codec
        assert after.base_timestamp == before.base_timestamp
        assert after.max_timestamp == max(record.timestamp for record in left)
    else:
        assert len(thinned) == 61
        assert after.max_timestamp == before.max_timestamp


def test_a_batch_can_be_thinned_again() -> None:
    records = [Record(delta, NOW, b"k", b"%d" % delta) for delta in range(5)]
    batch = build_batch(records, codec=Codec.ZSTD)
    once = thin(memoryview(batch), {1, 4}, limit_bytes=LIMIT)
    twice = thin(memoryview(once), {0}, limit_bytes=LIMIT)
    assert [record.value for record in read_records(twice)] == [b"2", b"3"]
    nothing = thin(memoryview(twice), range(5), limit_bytes=LIMIT)
    assert thin(memoryview(nothing), {0}, limit_bytes=LIMIT) == nothing
    assert check_batch(nothing).last_offset_delta == 4


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec], ids=CODEC_NAMES.get)
def test_no_batch_inflates_beyond_the_limit(codec: Codec) -> None:
    batch = build_batch([Record(0, NOW, b"k", bytes(100_000))], codec=codec)
    with pytest.raises(DecompressedTooLarge):
        thin(memoryview(batch), {0}, limit_bytes=50_000)


def test_damage_is_told() -> None:
    batch = bytearray(build_batch([Record(0, NOW, b"k", b"v")]))
    batch[-1] ^= 1
    with pytest.raises(MalformedBatch):
        thin(memoryview(batch), {0}, limit_bytes=LIMIT)
