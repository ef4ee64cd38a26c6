"""Produce by hand: the same as the compiled codecs say, for every version and for any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.core.limits import REQUEST_PARTITIONS_MAX
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import NodeEndpoint, response_frame, uvarint
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.produce_codec import (
    FLEXIBLE_FROM,
    LEADERS_FROM,
    TOPIC_IDS_FROM,
    VERSIONS,
    PartitionResult,
    TopicResult,
    decode_request,
    encode_response,
    encode_single_success,
    shape_size,
    sole_records,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ALL_VERSIONS = st.integers(*VERSIONS)
NAMES = st.text(max_size=5) | st.just("n" * 200)
TOPIC_IDS = st.binary(min_size=16, max_size=16).map(TopicId)
PARTITIONS = st.builds(
    PartitionProduceData, index=INT32, records=st.none() | st.binary(max_size=20) | st.just(bytes(300))
)
TOPICS = st.builds(
    TopicProduceData, name=NAMES, topic_id=TOPIC_IDS, partition_data=st.lists(PARTITIONS, max_size=3)
)
REQUESTS = st.builds(
    ProduceRequest,
    transactional_id=st.none() | NAMES,
    acks=st.integers(-1, 1),
    timeout_ms=INT32,
    topic_data=st.lists(TOPICS, max_size=3),
)
RESULTS = st.builds(
    PartitionResult,
    INT32,
    st.integers(-1, 120),
    INT64,
    INT64,
    INT64,
    st.lists(st.tuples(INT32, st.none() | NAMES), max_size=2).map(tuple),
    st.none() | NAMES,
    st.none() | st.tuples(INT32, INT32),
)


def encode(request: ProduceRequest, version: int) -> bytes:
    return bytes(schema.request_encoder(ApiKey.PRODUCE, version)(request))


@given(REQUESTS, ALL_VERSIONS, st.binary(max_size=3))
def test_a_request_is_read_as_the_compiled_decoder_reads_it(
    request: ProduceRequest, version: int, after: bytes
) -> None:
    wire = encode(request, version)
    buffer = memoryview(b"head" + wire + after)
    transactional_id, acks, timeout_ms, topics = decode_request(buffer, 4, 4 + len(wire), version)
    assert (transactional_id, acks, timeout_ms) == (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
    )
    by_id = version >= TOPIC_IDS_FROM
    assert [
        (name, topic_id, [(index, None if data is None else bytes(data)) for index, data in partitions])
        for name, topic_id, partitions in topics
    ] == [
        (
            "" if by_id else topic.name,
            topic.topic_id if by_id else None,
            [(each.index, each.records) for each in topic.partition_data],
        )
        for topic in request.topic_data
    ]


def test_records_are_views_into_the_buffer() -> None:
    partition = PartitionProduceData(index=0, records=b"records")
    wire = encode(ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[partition])]), 9)
    buffer = bytearray(wire)
    (_, _, _, [(_, _, [(_, records)])]) = decode_request(memoryview(buffer), 0, len(wire), 9)
    assert records is not None
    buffer[buffer.index(b"records")] = ord("R")
    assert bytes(records) == b"Records"


@given(REQUESTS, ALL_VERSIONS, st.data())
def test_a_request_that_is_cut_or_goes_on_is_refused(
    request: ProduceRequest, version: int, data: st.DataObject
) -> None:
    wire = encode(request, version)
    end = data.draw(st.integers(0, len(wire) - 1))
    # With the rest of it still behind the end, as in the shared buffer, and without.
    for buffer in (wire, wire[:end], wire[:end] + b"\xff" * 40):
        with pytest.raises(MalformedRequest):
            decode_request(memoryview(buffer), 0, end, version)
    with pytest.raises(MalformedRequest):
        decode_request(memoryview(wire + b"\0"), 0, len(wire) + 1, version)


@given(st.binary(max_size=60), ALL_VERSIONS)
def test_any_bytes_are_a_request_or_refused(wire: bytes, version: int) -> None:
    try:
        _, _, _, topics = decode_request(memoryview(wire), 0, len(wire), version)
    except MalformedRequest:
        return
    assert len(topics) <= len(wire)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="is not UTF-8"):
        decode_request(memoryview(b"\x02\xff" + bytes(8)), 0, 10, 9)


def test_more_partitions_than_one_request_may_name_are_refused() -> None:
    many = uvarint(REQUEST_PARTITIONS_MAX + 2)
    # Room enough for as many as are announced.
    wire = b"\0" + bytes(6) + b"\x02" + b"\x02t" + many + bytes(REQUEST_PARTITIONS_MAX * 2)
    with pytest.raises(MalformedRequest, match=f"at most {REQUEST_PARTITIONS_MAX} topics and partitions"):
        decode_request(memoryview(wire), 0, len(wire), 9)


@given(
    st.binary(max_size=20) | st.sampled_from([bytes(126), bytes(127), bytes(16_382), bytes(16_383)]),
    st.integers(FLEXIBLE_FROM, VERSIONS[1]),
    st.binary(max_size=3),
)
def test_the_records_of_a_usual_request_are_found_behind_its_shape(
    records: bytes, version: int, before: bytes
) -> None:
    topic = TopicProduceData(
        name="orders",
        topic_id=bytes(range(16)),
        partition_data=[PartitionProduceData(index=3, records=records)],
    )
    wire = encode(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), version)
    buffer = memoryview(before + wire)
    end = len(buffer)
    size = shape_size(buffer, len(before), end, len(records), version)
    assert size > 0
    found = sole_records(buffer, len(before) + size, end)
    assert found is not None
    assert bytes(found) == records
    # With records of another size the shape is the same, and theirs are found as well.
    topic.partition_data[0].records = b"others"
    other = memoryview(encode(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), version))
    assert bytes(other[:size]) == wire[:size]
    found = sole_records(other, size, len(other))
    assert found is not None
    assert bytes(found) == b"others"


def test_a_request_with_tags_or_of_a_classic_version_has_no_shape() -> None:
    buffer = memoryview(bytes(40))
    assert shape_size(buffer, 0, 40, 5, FLEXIBLE_FROM - 1) == 0
    assert shape_size(memoryview(bytes(39) + b"\1"), 0, 40, 5, FLEXIBLE_FROM) == 0


@given(st.binary(max_size=12))
def test_what_is_not_as_usual_has_no_sole_records(rest: bytes) -> None:
    found = sole_records(memoryview(rest), 0, len(rest))
    if found is not None:
        assert uvarint(len(found) + 1) + bytes(found) + b"\0\0\0" == rest


@given(
    st.lists(st.builds(TopicResult, NAMES, TOPIC_IDS, st.lists(RESULTS, max_size=3)), max_size=3),
    ALL_VERSIONS,
    INT32,
    st.lists(st.builds(NodeEndpoint, INT32, NAMES, INT32, st.none() | NAMES), max_size=2),
)
def test_the_compiled_decoder_reads_every_response(
    topics: list[TopicResult], version: int, throttle_ms: int, endpoints: list[NodeEndpoint]
) -> None:
    body = encode_response(topics, version, throttle_ms, endpoints)
    response = schema.response_decoder(ApiKey.PRODUCE, version)(body)
    assert response.throttle_time_ms == throttle_ms
    by_id = version >= TOPIC_IDS_FROM
    assert [(topic.topic_id if by_id else topic.name) for topic in response.responses] == [
        (topic.topic_id if by_id else topic.topic) for topic in topics
    ]
    for read, topic in zip(response.responses, topics, strict=True):
        for got, sent in zip(read.partition_responses, topic.partitions, strict=True):
            assert (got.index, got.error_code, got.base_offset) == sent[:3]
            assert got.log_append_time_ms == sent.log_append_time_ms
            if version >= 5:
                assert got.log_start_offset == sent.log_start_offset
            if version >= 8:
                assert got.error_message == sent.error_message
                errors = [(each.batch_index, each.batch_index_error_message) for each in got.record_errors]
                assert tuple(errors) == sent.record_errors
            if version >= LEADERS_FROM:
                leader = (got.current_leader.leader_id, got.current_leader.leader_epoch)
                assert leader == (sent.current_leader or (-1, -1))
    if version >= LEADERS_FROM:
        named = [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        assert named == [tuple(endpoint) for endpoint in endpoints]


@given(INT32, ALL_VERSIONS, NAMES, TOPIC_IDS, st.tuples(INT32, INT64, INT64, INT64))
def test_the_quick_answer_is_the_general_one_to_the_byte(
    correlation_id: int, version: int, topic: str, topic_id: TopicId, result: tuple[int, int, int, int]
) -> None:
    known_id = topic_id if version >= TOPIC_IDS_FROM else None
    quick = encode_single_success(correlation_id, version, topic, known_id, *result)
    partition, base_offset, append_time, log_start_offset = result
    only = PartitionResult(partition, 0, base_offset, append_time, log_start_offset)
    body = encode_response([TopicResult(topic, known_id, [only])], version)
    assert quick == response_frame(correlation_id, body, flexible=version >= FLEXIBLE_FROM)
