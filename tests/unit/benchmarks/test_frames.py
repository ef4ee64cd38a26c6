"""Frames of the load generators, read back by kafka-python and kio: the load must be what clients send."""

from __future__ import annotations

import io
import struct
import warnings

import pytest
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.fetch.v11.request import FetchRequest
from kio.schema.metadata.v1.request import MetadataRequest
from kio.schema.produce.v10.request import ProduceRequest
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_reader

from benchmarks import frames

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function of importlib.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecords

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("count", [1, 2, 15, 200])
@pytest.mark.parametrize("size", [0, 1, 100, 1_000])
def test_a_batch_is_valid_for_kafka_python(count: int, size: int) -> None:
    batch = frames.build_batch(b"v" * size, count, NOW_MS)

    records = MemoryRecords(batch)
    parsed = records.next_batch()

    assert parsed.validate_crc()
    rows = list(parsed)
    assert [row.offset for row in rows] == list(range(count))
    assert {row.value for row in rows} == {b"v" * size}
    assert {row.key for row in rows} == {None}
    assert {row.timestamp for row in rows} == {NOW_MS}
    assert records.next_batch() is None


@pytest.mark.parametrize("limit", [1_100, 16_384, 1_000_000])
@pytest.mark.parametrize("size", [100, 1_000])
def test_a_batch_is_filled_up_to_its_limit_and_not_beyond(size: int, limit: int) -> None:
    count = frames.records_that_fit(size, limit)
    assert len(frames.build_batch(bytes(size), count, NOW_MS)) <= limit
    assert len(frames.build_batch(bytes(size), count + 1, NOW_MS)) > limit


def test_a_batch_holds_at_least_one_record() -> None:
    assert frames.records_that_fit(1_000, 100) == 1


def test_a_produce_frame_is_a_produce_request() -> None:
    batch = frames.build_batch(b"value", 3, NOW_MS)
    body = _body(frames.produce_request("orders", 5, batch))

    header, header_size = entity_reader(RequestHeaderV2)(body, 0)
    request, request_size = entity_reader(ProduceRequest)(body, header_size)

    assert (header.request_api_key, header.request_api_version) == (0, 10)
    assert header_size + request_size == len(body)
    assert request.acks == -1
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, partition.records) == ("orders", 5, batch)


def test_a_fetch_frame_is_a_fetch_request() -> None:
    body = _body(frames.fetch_request("orders", 2, 77, 65_536))

    _, header_size = entity_reader(RequestHeaderV1)(body, 0)
    request, request_size = entity_reader(FetchRequest)(body, header_size)

    assert header_size + request_size == len(body)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.topic, partition.partition, partition.fetch_offset) == ("orders", 2, 77)
    assert partition.partition_max_bytes == 65_536


def test_the_requests_of_the_start_up_probe_are_well_formed() -> None:
    body = _body(frames.api_versions_request())
    _, header_size = entity_reader(RequestHeaderV1)(body, 0)
    assert header_size + entity_reader(ApiVersionsRequest)(body, header_size)[1] == len(body)

    body = _body(frames.metadata_request())
    _, header_size = entity_reader(RequestHeaderV1)(body, 0)
    request, request_size = entity_reader(MetadataRequest)(body, header_size)
    assert header_size + request_size == len(body)
    assert request.topics == ()


def test_the_error_code_of_a_produce_answer_is_found() -> None:
    topic = "orders"
    head = b"\x00\x00\x00\x40" + b"\x00\x00\x00\x07" + b"\x00" + b"\x02" + b"\x07orders" + b"\x02"
    answer = head + struct.pack(">ih", 5, 87)
    position = frames.produce_error_at(topic)
    assert struct.unpack_from(">h", answer, position) == (87,)


def test_a_fetch_answer_is_read() -> None:
    answer = struct.pack(">iihii", 7, 0, 0, 0, 1) + struct.pack(">h", 6) + b"orders"
    answer += struct.pack(">i", 1) + struct.pack(">ihqqqi", 2, 0, 90, 90, 0, 1) + bytes(16)
    answer += struct.pack(">ii", -1, 3) + b"abc"
    assert frames.fetch_answer(answer) == frames.FetchAnswer(0, 90, 3)


def test_a_refused_fetch_is_read() -> None:
    answer = struct.pack(">iihii", 7, 0, 71, 0, 0)
    assert frames.fetch_answer(answer) == frames.FetchAnswer(71, -1, 0)


def test_brokers_are_counted_in_a_metadata_answer() -> None:
    assert frames.metadata_broker_count(struct.pack(">ii", 7, 3)) == 3


def _body(frame: bytes) -> bytes:
    stream = io.BytesIO(frame)
    (size,) = struct.unpack(">i", stream.read(4))
    body = stream.read()
    assert size == len(body)
    return body
