"""The fields of many records at once are those that a plain reader finds one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipeline.records.fields import cut_ranges, read_fields, read_headers, read_varints
from millrace.pipeline.records.walk import record_starts
from millrace.wire.record_spans import MalformedBatch
from millrace.wire.records import Record, build_batch

NOW_MS = 1_760_000_000_000
HEADER_BYTES = 61


def varint(value: int) -> bytes:
    raw, out = (value << 1) ^ (value >> 63), bytearray()
    raw &= 2**64 - 1
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*out, raw])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_varints_of_64_bits_are_read_side_by_side(values: list[int]) -> None:
    parts = [varint(value) for value in values]
    starts = np.cumsum([0, *map(len, parts)])
    found, after = read_varints(np.frombuffer(b"".join(parts), np.uint8), starts[:-1], 10)
    assert found.tolist() == values
    assert after.tolist() == starts[1:].tolist()


@pytest.mark.parametrize(
    "data, size_max", [(b"\x80" * 6, 5), (b"\xff" * 9 + b"\x02", 10), (b"\x80" * 12, 10)]
)
def test_a_varint_that_is_too_long_is_refused(data: bytes, size_max: int) -> None:
    with pytest.raises(MalformedBatch, match="too long"):
        read_varints(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), size_max)


BYTES = st.none() | st.binary(max_size=140)
RECORDS = st.lists(
    st.tuples(
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(RECORDS)
def test_every_field_is_where_it_was_written(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
) -> None:
    written = [
        Record(offset, NOW_MS + later, key, value, tuple(headers))
        for offset, (key, value, headers, later) in enumerate(rows)
    ]
    raw = bytes(build_batch(written)[HEADER_BYTES:])
    data = np.frombuffer(raw, np.uint8)
    bounds = (np.array([each], np.int64) for each in (0, len(raw), len(rows)))
    fields = read_fields(data, record_starts(data, *bounds))
    headers = read_headers(data, fields)
    assert fields.offset_delta.tolist() == list(range(len(rows)))
    assert (fields.timestamp_delta - fields.timestamp_delta[0]).tolist() == [
        each.timestamp - written[0].timestamp for each in written
    ]
    assert fields.header_count.tolist() == [len(each.headers) for each in written]
    keys, values = cut_ranges(
        pa.py_buffer(raw),
        [
            (fields.key_start, fields.key_end, fields.key_is_null),
            (fields.value_start, fields.value_end, fields.value_is_null),
        ],
        [pa.binary(), pa.binary()],
    )
    assert keys.to_pylist() == [each.key for each in written]
    assert values.to_pylist() == [each.value for each in written]
    found = [
        (raw[a:b].decode(), None if no else raw[c:d])
        for a, b, c, d, no in zip(
            headers.key_start.tolist(),
            headers.key_end.tolist(),
            headers.value_start.tolist(),
            headers.value_end.tolist(),
            headers.value_is_null.tolist(),
            strict=True,
        )
    ]
    assert found == [header for each in written for header in each.headers]


def test_a_part_of_the_rows_keeps_all_their_fields() -> None:
    raw = bytes(build_batch([Record(n, NOW_MS, b"k%d" % n, b"v") for n in range(4)])[HEADER_BYTES:])
    data = np.frombuffer(raw, np.uint8)
    fields = read_fields(
        data, record_starts(data, *(np.array([each], np.int64) for each in (0, len(raw), 4)))
    )
    chosen = fields.select(np.array([True, False, False, True]))
    assert chosen.offset_delta.tolist() == [0, 3]
    assert [raw[a:b] for a, b in zip(chosen.key_start, chosen.key_end, strict=True)] == [b"k0", b"k3"]


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


PREFIX = b"\0" + varint(0) + varint(0)


@pytest.mark.parametrize("body, words", [
    (PREFIX + varint(-2) + varint(-1) + varint(0), "negative key length"),
    (PREFIX + varint(-1) + varint(-2) + varint(0), "negative value length"),
    (PREFIX + varint(-1) + varint(-1) + varint(-1), "do not fit its length"),
    (PREFIX + varint(-1) + varint(-1) + varint(9), "do not fit its length"),
    (PREFIX + varint(-1) + varint(-1) + varint(0) + b"more", "do not fill its length"),
    (PREFIX + varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1), "headers do not fit"),
    (PREFIX + varint(-1) + varint(-1) + varint(1) + varint(0) + varint(9), "headers do not fit"),
    (PREFIX + varint(-1) + varint(-1) + varint(1) + varint(0) + varint(-1) + b"more", "headers do not fill"),
])  # fmt: skip
def test_fields_that_do_not_fit_their_record_are_refused(body: bytes, words: str) -> None:
    data = np.frombuffer(record(body) + bytes(20), np.uint8)
    with pytest.raises(MalformedBatch, match=words):
        read_headers(data, read_fields(data, np.zeros(1, np.int64)))
