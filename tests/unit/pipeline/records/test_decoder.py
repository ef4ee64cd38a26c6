"""Raw batches decoded with numpy must be, row for row, what the plain reader of records finds in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.pipeline.records.decoder import Decoder, RowFilter, scan_batches
from millrace.pipeline.records.row_schema import COLUMN_TYPES
from millrace.pipeline.source.columns import DEFAULT_COLUMNS
from millrace.wire.batch_header import CRC_AT
from millrace.wire.compression import Codec
from millrace.wire.records import (
    ControlMarker,
    ControlType,
    MalformedBatch,
    Record,
    build_batch,
    build_marker,
    read_records,
)

NOW_MS = 1_760_000_000_000
ALL = tuple(COLUMN_TYPES)


def decode(
    data: bytes, *, columns: tuple[str, ...] = ALL, rows: RowFilter | None = None, end: int = 2**62
) -> list[dict[str, Any]]:
    view = memoryview(data)
    scan = scan_batches(view, 0, end, [])
    found: list[dict[str, Any]] = []
    for batch in Decoder("orders", 7, columns).decode(view, scan.batches, rows or RowFilter()):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def expected(data: Sequence[bytes], *, appended: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 7,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": int(appended),
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for batch in data
        for record in read_records(batch)
    ]


def in_ms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Timestamps as the milliseconds that records hold."""
    return [row | {"timestamp": round(row["timestamp"].timestamp() * 1000)} for row in rows]


@dataclass
class Writer:
    """Batches of random records in offset order."""

    rng: random.Random
    offset: int = 1_000

    def batch(
        self, count: int, codec: Codec = Codec.NONE, *, gaps: bool = False, sizes: Sequence[int] = ()
    ) -> bytes:
        records = []
        for _ in range(count):
            records.append(self.record(sizes or (0, 1, 63, 64, 127, 128, 300)))
            self.offset += self.rng.choice((1, 1, 2, 9)) if gaps else 1
        return build_batch(records, codec=codec)

    def record(self, sizes: Sequence[int]) -> Record:
        rng = self.rng
        key = None if rng.random() < 0.3 else rng.randbytes(rng.choice((0, 3, 70)))
        value = None if rng.random() < 0.2 else rng.randbytes(rng.choice(sizes))
        headers = tuple(
            (f"header {number}", None if rng.random() < 0.3 else rng.randbytes(rng.randrange(5)))
            for number in range(rng.choice((0, 0, 0, 1, 4)))
        )
        return Record(self.offset, NOW_MS + rng.randrange(-70, 20_000), key, value, headers)


SHAPES = {
    "one record": [1],
    "few batches": [3, 1, 20],
    "many short batches": [5, 30, 1, 90, 7] * 12,
    "many batches and a long one": [4, 9] * 20 + [700],
    "long batches": [600, 513],
    "uneven batches": [2] * 30 + [200, 400, 511],
}


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("shape", SHAPES)
def test_every_field_of_every_record_is_right(shape: str, codec: Codec) -> None:
    writer = Writer(random.Random(f"{shape} {codec}"))
    batches = [writer.batch(count, codec, gaps=True) for count in SHAPES[shape]]
    assert in_ms(decode(b"".join(batches))) == expected(batches)


def test_batches_of_all_codecs_lie_in_one_fetch() -> None:
    writer = Writer(random.Random(7))
    batches = [writer.batch(40, codec) for codec in [*Codec, *Codec, *Codec]]
    assert in_ms(decode(b"".join(batches))) == expected(batches)


@pytest.mark.parametrize("size", [0, 57, 58, 100, 8_000, 9_000, 70_000])
def test_runs_of_equal_records_are_found_whatever_their_length_takes(size: int) -> None:
    """The length of a record has one byte, two or three; it grows where deltas of offsets and times do."""
    records = [Record(offset, NOW_MS + offset // 10, b"key", bytes(size)) for offset in range(700)]
    batches = [build_batch(records)]
    assert in_ms(decode(b"".join(batches))) == expected(batches)


def test_values_that_look_like_records_deceive_nobody() -> None:
    """Places in the middle of long batches are guessed by how records look; a record may hold others."""
    rng = random.Random(11)
    inner = build_batch([Record(offset, NOW_MS, b"key", b"value") for offset in range(40)])[61:]
    records = [
        Record(offset, NOW_MS, None, inner[: rng.randrange(len(inner))] + rng.randbytes(rng.randrange(30)))
        for offset in range(900)
    ]
    batches = [build_batch(records[:300]), build_batch(records[300:])]
    assert in_ms(decode(b"".join(batches))) == expected(batches)


def test_long_records_side_by_side() -> None:
    writer = Writer(random.Random(3))
    batches = [writer.batch(3, sizes=(10, 9_000, 20_000)) for _ in range(40)]
    assert in_ms(decode(b"".join(batches))) == expected(batches)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from(list(Codec))), min_size=1, max_size=40),
    st.integers(0, 2**32),
)
def test_any_shape_is_decoded_as_the_plain_reader_does(shape: list[tuple[int, Codec]], seed: int) -> None:
    writer = Writer(random.Random(seed))
    batches = [writer.batch(count, codec, gaps=seed % 2 == 0) for count, codec in shape]
    assert in_ms(decode(b"".join(batches))) == expected(batches)


def test_timestamps_of_the_broker_and_far_away_ones() -> None:
    records = [
        Record(0, NOW_MS, None, b"a"),
        Record(1, NOW_MS - 2**40, None, b"b"),
        Record(2, NOW_MS, None, b"c"),
    ]
    by_client, by_broker = (
        build_batch(records),
        build_batch(records, append_time_ms=NOW_MS + 5, base_offset=0),
    )
    assert in_ms(decode(by_client)) == expected([by_client])
    assert in_ms(decode(by_broker)) == expected([by_broker], appended=True)
    assert {row["timestampType"] for row in decode(by_client + by_broker)} == {0, 1}


def test_only_the_columns_asked_for() -> None:
    batch = build_batch([Record(5, NOW_MS, b"k", b"v")])
    assert decode(batch, columns=("value",)) == [{"value": b"v"}]
    assert decode(batch, columns=("offset", "key")) == [{"offset": 5, "key": b"k"}]
    assert list(decode(batch, columns=DEFAULT_COLUMNS)[0]) == list(DEFAULT_COLUMNS)


def test_rows_outside_of_the_bounds_are_left_out() -> None:
    batch = build_batch([Record(offset, NOW_MS + offset, None, b"%d" % offset) for offset in range(10)])

    def kept(**bounds: int) -> list[int]:
        return [row["offset"] for row in decode(batch, rows=RowFilter(**bounds))]

    assert kept(offset_from=3, offset_to=5) == [3, 4]
    assert kept(timestamp_from_us=(NOW_MS + 8) * 1000) == [8, 9]
    assert kept(timestamp_to_us=(NOW_MS + 1) * 1000 + 1) == [0, 1]
    assert kept(offset_from=20) == []


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    def transactional(offset: int, producer_id: int, value: bytes) -> bytes:
        return build_batch(
            [Record(offset, NOW_MS, None, value)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    def marker(offset: int, producer_id: int, kind: int) -> bytes:
        return build_marker(
            ControlMarker(kind, 0), offset=offset, timestamp=NOW_MS, producer_id=producer_id, producer_epoch=0
        )

    data = b"".join(
        (
            transactional(0, 11, b"aborted"),
            transactional(1, 12, b"committed"),
            build_batch([Record(2, NOW_MS, None, b"plain")]),
            marker(3, 11, ControlType.ABORT),
            transactional(4, 11, b"committed later"),
            marker(5, 12, ControlType.COMMIT),
            marker(6, 11, ControlType.COMMIT),
            transactional(7, 12, b"aborted too"),
            marker(8, 12, ControlType.ABORT),
        )
    )
    view = memoryview(data)
    scan = scan_batches(view, 0, 9, [(12, 7), (11, 0)])
    (rows,) = Decoder("t", 0, ("value",)).decode(view, scan.batches, RowFilter())
    assert rows.column("value").to_pylist() == [b"committed", b"plain", b"committed later"]
    assert scan.next_offset == 9


def test_a_cut_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    one, two = build_batch([Record(0, NOW_MS, None, b"a")]), build_batch([Record(1, NOW_MS, None, b"b")])
    scan = scan_batches(memoryview(one + two[:-1]), 0, 10, [])
    assert (len(scan.batches), scan.next_offset, scan.bytes_read) == (1, 1, len(one))


def test_a_batch_that_compaction_emptied_moves_the_reader_on() -> None:
    empty = build_batch([], base_offset=10, last_offset=19)
    scan = scan_batches(memoryview(empty), 10, 30, [])
    assert (scan.batches, scan.next_offset) == ([], 20)


def test_reading_ends_with_the_range() -> None:
    batches = b"".join(build_batch([Record(offset, NOW_MS, None, b"x")]) for offset in range(5))
    assert [row["offset"] for row in decode(batches, end=3)] == [0, 1, 2]


def test_damage_is_reported_and_never_read() -> None:
    batch = bytearray(build_batch([Record(4, NOW_MS, b"key", b"value")]))
    batch[-1] ^= 1
    with pytest.raises(MalformedBatch, match=r"offset 4.*checksum"):
        scan_batches(memoryview(batch), 0, 10, [])


def test_lengths_that_lie_are_found_out_behind_a_right_checksum() -> None:
    """Damage that a producer checksummed: every single changed byte of the records is refused or harmless."""
    good = build_batch([Record(offset, NOW_MS, b"k", b"v" * 9, (("h", b"x"),)) for offset in range(3)])
    refused = 0
    for place in range(61, len(good)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            bad = bytearray(good)
            bad[place] = value
            view = memoryview(bytes(bad))
            scan = scan_batches(view, 0, 10, [], check_crc=False)
            try:
                for batch in Decoder("t", 0, ("key", "value", "headers")).decode(
                    view, scan.batches, RowFilter()
                ):
                    assert batch.num_rows == 3
                    batch.validate()
            except MalformedBatch:
                refused += 1
    assert refused > 100
    assert good[CRC_AT : CRC_AT + 4] == build_batch(read_records(good))[CRC_AT : CRC_AT + 4]
