"""Batches built and read: round trips, agreement with other implementations, damage refused."""

from __future__ import annotations

import contextlib
import random
import struct
import warnings
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import MillraceError
from millrace.wire.batch_header import CRC_AT, HEADER_SIZE, BatchHeader, read_header
from millrace.wire.compression import CODEC_NAMES, Codec, DecompressedTooLarge
from millrace.wire.record_spans import append_varint, read_varint
from millrace.wire.records import (
    ControlMarker,
    ControlType,
    MalformedBatch,
    Record,
    assemble_batch,
    build_batch,
    build_marker,
    build_plain_batch,
    check_batch,
    inflate_records,
    read_control_marker,
    read_records,
    scan_records,
    split_batches,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_records

maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=20), maybe_bytes), max_size=4).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 12))):
        records.append(
            Record(
                offset,
                draw(st.integers(-1, 2**45)),
                draw(maybe_bytes),
                draw(maybe_bytes),
                draw(header_lists),
            )
        )
        offset += draw(st.sampled_from([1, 1, 1, 2, 200, 40_000]))
    return records


@given(records=record_lists(), codec=st.sampled_from(Codec), transactional=st.booleans())
@settings(max_examples=80, deadline=None)
def test_what_was_built_is_read_back(records: list[Record], codec: Codec, transactional: bool) -> None:
    batch = build_batch(
        records,
        codec=codec,
        leader_epoch=3,
        producer_id=77,
        producer_epoch=5,
        base_sequence=9,
        transactional=transactional,
        last_offset=records[-1].offset + 3,
    )
    assert read_records(batch) == records
    header = check_batch(batch)
    assert header.base_offset == records[0].offset
    assert header.last_offset == records[-1].offset + 3
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, 9)
    assert header.leader_epoch == 3
    assert header.compression == codec
    assert header.is_transactional == transactional
    assert not header.is_control


def test_spans_point_at_the_bytes() -> None:
    records = [
        Record(5, 100, None, b"v"),
        Record(6, 90, b"key", None),
        Record(9, 10**9, b"", b"", (("h", b"x"),)),
    ]
    batch = build_batch(records)
    header = check_batch(batch)
    data = inflate_records(batch, header)
    spans = list(scan_records(data, header))
    assert [span[0] for span in spans] == [0, 1, 4]
    assert [header.base_timestamp + span[1] for span in spans] == [100, 90, 10**9]
    assert [None if s[2] < 0 else data[s[2] : s[3]] for s in spans] == [None, b"key", b""]
    assert [span[4] for span in spans] == [False, True, False]
    assert b"".join(data[span[5] : span[6]] for span in spans) == data


def test_header_keys_that_are_not_utf8_survive() -> None:
    encoded = bytearray()
    append_varint(encoded, 9)
    encoded += b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"
    batch = assemble_batch(_header(count=1), encoded)
    (record,) = read_records(batch)
    assert record.headers == (("\udcff", None),)
    assert read_records(build_batch([record])) == [record]


def test_append_time_is_every_records_time() -> None:
    batch = build_batch([Record(0, 1, b"a", b""), Record(1, 2, b"b", b"")], append_time_ms=500)
    assert [record.timestamp for record in read_records(batch)] == [500, 500]


def test_a_delete_horizon_does_not_move_timestamps() -> None:
    records = [Record(0, 1_000, b"a", None), Record(1, 2_000, b"b", b"x")]
    batch = build_batch(records, delete_horizon_ms=90_000)
    header = check_batch(batch)
    assert header.base_timestamp == 90_000
    assert header.attributes & 0x40
    assert read_records(batch) == records


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_markers_say_how_a_transaction_ended(control_type: int) -> None:
    marker = ControlMarker(control_type, 12)
    batch = build_marker(marker, offset=40, timestamp=7, producer_id=1, producer_epoch=2)
    header = check_batch(batch)
    assert header.is_control
    assert header.is_transactional
    (record,) = read_records(batch)
    assert read_control_marker(record.key, record.value) == marker
    assert read_control_marker(struct.pack(">hh", 0, 4), b"") is None
    for key, value in [(None, b""), (b"\x00", b""), (record.key, None), (record.key, b"\x00")]:
        with pytest.raises(MalformedBatch):
            read_control_marker(key, value)


def test_an_emptied_batch_keeps_its_offsets() -> None:
    header = _header(count=0)._replace(last_offset_delta=9, attributes=Codec.GZIP)
    batch = assemble_batch(header, b"")
    assert read_records(batch) == []
    assert check_batch(batch).next_offset == 10


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4], ids=CODEC_NAMES.get)
def test_kafka_python_agrees(codec: Codec) -> None:
    _check_against(kafka_records.DefaultRecordBatchBuilder, kafka_records.DefaultRecordBatch, codec)


@pytest.mark.parametrize("codec", Codec, ids=CODEC_NAMES.get)
def test_aiokafka_agrees(codec: Codec) -> None:
    _check_against(
        aiokafka_records._DefaultRecordBatchBuilderPy, aiokafka_records._DefaultRecordBatchPy, codec
    )


def _check_against(builder_class: Any, reader_class: Any, codec: Codec) -> None:
    rng = random.Random(codec)
    for count in (1, 2, 70, 300):
        records = [
            Record(
                index,
                1_700_000_000_000 + rng.randrange(100_000),
                rng.choice([None, b"", b"key-%d" % index]),
                rng.choice([None, b"", rng.randbytes(rng.randrange(400))]),
                rng.choice([(), (("h1", b"v"), ("h2", None))]),
            )
            for index in range(count)
        ]
        builder = builder_class(2, int(codec), 1, 44, 2, 10, 10_000_000)
        for record in records:
            builder.append(
                record.offset, record.timestamp, record.key, record.value, headers=list(record.headers)
            )
        assert read_records(bytes(builder.build())) == records

        ours = build_batch(
            records, codec=codec, producer_id=44, producer_epoch=2, base_sequence=10, transactional=True
        )
        reader = reader_class(bytearray(ours))
        assert reader.validate_crc()
        assert reader.producer_id == 44
        read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in reader]
        assert read == records


def test_split_batches_wants_whole_batches() -> None:
    one, two = build_batch([Record(0, 0, b"a", b"")]), build_batch([Record(1, 0, b"b", b"1")])
    assert [bytes(part) for part in split_batches(memoryview(one + two))] == [one, two]
    assert split_batches(memoryview(b"")) == []
    for damaged in (one[:-1], one + two[:20], one + b"\0", bytes(HEADER_SIZE)):
        with pytest.raises(MalformedBatch):
            split_batches(memoryview(damaged))


def test_wrong_headers_are_refused() -> None:
    batch = build_batch([Record(0, 0, b"a", b"")])
    for damaged in (
        b"",
        batch[:60],
        batch + b"\0",
        batch[:16] + b"\x01" + batch[17:],
        batch[:-1] + b"\x07",
        assemble_batch(_header(count=-1), b""),
        assemble_batch(_header(count=0)._replace(last_offset_delta=-1), b""),
        assemble_batch(_header(count=0)._replace(base_offset=2**63 - 1, last_offset_delta=5), b""),
        assemble_batch(_header(count=0)._replace(base_offset=-1), b""),
    ):
        with pytest.raises(MalformedBatch):
            check_batch(damaged)


@pytest.mark.parametrize(
    "records",
    [
        b"",  # count says 1
        b"\x0c\x00\x00\x00\x01\x01\x00\x00",  # bytes behind the last record
        b"\x0e\x00\x00\x00\x01\x01\x00",  # length beyond the end
        b"\x01\x00\x00\x00\x01\x01\x00",  # negative length
        b"\x0c\x00\x00\x02\x01\x01\x00",  # offset delta above the last one
        b"\x0c\x00\x00\x01\x01\x01\x00",  # negative offset delta
        b"\x0c\x00\x00\x00\x03\x01\x00",  # key length -2
        b"\x0c\x00\x00\x00\x01\x03\x00",  # value length -2
        b"\x0c\x00\x00\x00\x01\x01\x01",  # header count -1
        b"\x0c\x00\x00\x00\x01\x01\x02",  # a header that is not there
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",  # a header key of length -1
        b"\x10\x00\x00\x00\x01\x01\x02\x00\x03",  # a header value of length -2
        b"\xff\xff\xff\xff\xff\x00",  # a varint of more than 32 bits
        b"\xff\xff\xff\xff\xff\xff\xff",  # a varint without an end
        b"\x20\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x01\x01\x00\x00",  # a timestamp over 64 bits
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=CODEC_NAMES.get)
def test_wrong_records_are_refused(records: bytes, codec: Codec) -> None:
    with pytest.raises(MalformedBatch):
        read_records(assemble_batch(_header(count=1), records, codec))


def test_an_unknown_codec_is_refused() -> None:
    batch = bytearray(build_batch([Record(0, 0, b"a", b"")]))
    batch[22] |= 5
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[21:]))
    with pytest.raises(MalformedBatch, match="no compression type has the number 5"):
        read_records(batch)


def test_a_bomb_in_a_batch_is_bounded() -> None:
    batch = build_batch([Record(0, 0, b"k", bytes(5_000_000))], codec=Codec.ZSTD)
    assert len(batch) < 2_000
    with pytest.raises(DecompressedTooLarge):
        read_records(batch, 1_000_000)


@given(
    records=record_lists(),
    codec=st.sampled_from(Codec),
    mutations=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    fix_checksum=st.booleans(),
    cut=st.integers(0, 10),
)
@settings(max_examples=120, deadline=None)
def test_mutated_batches_give_only_our_errors(
    records: list[Record], codec: Codec, mutations: list[tuple[int, int]], fix_checksum: bool, cut: int
) -> None:
    batch = bytearray(build_batch(records, codec=codec))
    for place, value in mutations:
        batch[place % len(batch)] = value
    del batch[len(batch) - cut :]
    if fix_checksum and len(batch) >= HEADER_SIZE:
        header = read_header(batch)._replace(batch_length=len(batch) - 12, magic=2)
        batch[:HEADER_SIZE] = assemble_batch(header._replace(attributes=header.attributes), b"")[:HEADER_SIZE]
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">h", batch, 21, header.attributes)
        struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[21:]))
    with contextlib.suppress(MillraceError):
        read_records(batch, 1_000_000)


@given(data=st.binary(max_size=60), count=st.integers(0, 5), last_delta=st.integers(0, 2**31 - 1))
@settings(max_examples=120, deadline=None)
def test_garbage_records_give_only_our_errors(data: bytes, count: int, last_delta: int) -> None:
    header = _header(count=count)._replace(last_offset_delta=last_delta)
    try:
        for span in scan_records(data, header):
            assert 0 <= span[5] < span[6] <= len(data)
            assert span[2] == -1 or span[5] < span[2] <= span[3] <= span[6]
    except MalformedBatch:
        pass


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    encoded = bytearray(b"\0")
    append_varint(encoded, value)
    assert read_varint(bytes(encoded), 1, 10) == (value, len(encoded))


def _header(count: int) -> BatchHeader:
    return BatchHeader(0, 0, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, count)


@given(
    st.lists(
        st.tuples(st.binary(max_size=700), st.none() | st.binary(max_size=700)), min_size=1, max_size=600
    ),
    st.integers(0, 2**50),
)
@settings(max_examples=60)
def test_the_short_way_to_a_plain_batch_makes_the_same_bytes(
    pairs: list[tuple[bytes, bytes | None]], timestamp_ms: int
) -> None:
    records = [Record(offset, timestamp_ms, key, value) for offset, (key, value) in enumerate(pairs)]
    assert bytes(build_plain_batch(pairs, timestamp_ms)) == build_batch(records)
