"""The hand-made codecs of Produce and Fetch against the compiled ones: same bytes, same meaning, every
version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.wire import fetch_codec, produce_codec, schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import response_frame
from millrace.wire.messages import fetch as fetch_messages
from millrace.wire.messages import produce as produce_messages

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8", categories=("L", "N")), max_size=200)
topic_ids = st.binary(min_size=16, max_size=16)
PRODUCE_VERSIONS = range(produce_codec.VERSIONS[0], produce_codec.VERSIONS[1] + 1)
FETCH_VERSIONS = range(fetch_codec.VERSIONS[0], fetch_codec.VERSIONS[1] + 1)

produce_requests = st.builds(
    produce_messages.ProduceRequest,
    transactional_id=st.none() | names,
    acks=int16,
    timeout_ms=int32,
    topic_data=st.lists(
        st.builds(
            produce_messages.TopicProduceData,
            name=names,
            topic_id=topic_ids,
            partition_data=st.lists(
                st.builds(
                    produce_messages.PartitionProduceData,
                    index=int32,
                    records=st.none() | st.binary(max_size=300),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
)

fetch_requests = st.builds(
    fetch_messages.FetchRequest,
    replica_id=st.integers(-1, 5),
    replica_state=st.builds(fetch_messages.ReplicaState, replica_id=st.integers(-1, 5), replica_epoch=int64),
    max_wait_ms=int32,
    min_bytes=int32,
    max_bytes=int32,
    isolation_level=st.integers(0, 1),
    session_id=int32,
    session_epoch=int32,
    rack_id=names,
    topics=st.lists(
        st.builds(
            fetch_messages.FetchTopic,
            topic=names,
            topic_id=topic_ids,
            partitions=st.lists(
                st.builds(
                    fetch_messages.FetchPartition,
                    partition=int32,
                    current_leader_epoch=int32,
                    fetch_offset=int64,
                    last_fetched_epoch=int32,
                    log_start_offset=int64,
                    partition_max_bytes=int32,
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
    forgotten_topics_data=st.lists(
        st.builds(
            fetch_messages.ForgottenTopic,
            topic=names,
            topic_id=topic_ids,
            partitions=st.lists(int32, max_size=4),
        ),
        max_size=3,
    ),
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=15)
@given(request=produce_requests)
def test_produce_requests_are_read_as_the_schema_reads_them(
    version: int, request: produce_messages.ProduceRequest
) -> None:
    data = bytearray(schema.request_encoder(ApiKey.PRODUCE, version)(request))
    transactional_id, acks, timeout_ms, topics = produce_codec.decode_request(
        memoryview(data), 0, len(data), version
    )
    by_id = version >= produce_codec.TOPIC_IDS_FROM
    assert (transactional_id, acks, timeout_ms) == (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
    )
    assert [
        (
            name,
            topic_id,
            [(index, None if records is None else bytes(records)) for index, records in partitions],
        )
        for name, topic_id, partitions in topics
    ] == [
        (
            "" if by_id else topic.name,
            topic.topic_id if by_id else None,
            [(partition.index, partition.records) for partition in topic.partition_data],
        )
        for topic in request.topic_data
    ]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=15)
@given(request=produce_requests, data=st.data())
def test_a_produce_request_cut_anywhere_is_refused(
    version: int, request: produce_messages.ProduceRequest, data: st.DataObject
) -> None:
    whole = bytearray(schema.request_encoder(ApiKey.PRODUCE, version)(request))
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRequest):
        produce_codec.decode_request(memoryview(whole)[:end], 0, end, version)


@pytest.mark.parametrize("version", [version for version in PRODUCE_VERSIONS if version >= 9])
@given(
    name=names,
    topic_id=topic_ids,
    index=int32,
    sizes=st.lists(st.integers(1, 70_000), min_size=2, max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_a_producer_that_repeats_itself_is_read_by_its_first_bytes(
    version: int, name: str, topic_id: bytes, index: int, sizes: list[int]
) -> None:
    encode = schema.request_encoder(ApiKey.PRODUCE, version)

    def body_of(size: int) -> memoryview:
        partition = produce_messages.PartitionProduceData(index=index, records=bytes([size % 251]) * size)
        topic = produce_messages.TopicProduceData(name=name, topic_id=topic_id, partition_data=[partition])
        request = produce_messages.ProduceRequest(acks=-1, timeout_ms=5, topic_data=[topic])
        return memoryview(bytearray(b"head" + encode(request)))

    first = body_of(sizes[0])
    shape = produce_codec.shape_size(first, 4, len(first), sizes[0], version)
    for size in sizes[1:]:
        body = body_of(size)
        assert body[4 : 4 + shape] == first[4 : 4 + shape]
        _, _, _, ((_, _, ((_, expected),)),) = produce_codec.decode_request(body, 4, len(body), version)
        assert produce_codec.sole_records(body, 4 + shape, len(body)) == expected
        # Neither more nor less than the whole request will do.
        for end in (len(body) - 1, 4 + shape, 5 + shape):
            assert produce_codec.sole_records(body, 4 + shape, end) is None
        tagged = memoryview(bytearray(bytes(body[:-1]) + b"\1"))
        assert produce_codec.sole_records(tagged, 4 + shape, len(tagged)) is None
        assert produce_codec.shape_size(tagged, 4, len(tagged), size, version) == 0


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=15)
@given(
    topics=st.lists(
        st.builds(
            produce_codec.TopicResult,
            names,
            topic_ids,
            st.lists(
                st.builds(
                    produce_codec.PartitionResult,
                    int32,
                    int16,
                    int64,
                    int64,
                    int64,
                    st.lists(st.tuples(int32, st.none() | names), max_size=2).map(tuple),
                    st.none() | names,
                    st.none() | st.tuples(int32, int32),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
    throttle_time_ms=int32,
)
def test_produce_responses_are_what_the_schema_writes(
    version: int, topics: list[produce_codec.TopicResult], throttle_time_ms: int
) -> None:
    expected = produce_messages.ProduceResponse(
        throttle_time_ms=throttle_time_ms,
        responses=[
            produce_messages.TopicProduceResponse(
                name=topic.topic,
                topic_id=topic.topic_id or bytes(16),
                partition_responses=[_produce_partition(result, version) for result in topic.partitions],
            )
            for topic in topics
        ],
    )
    ours = produce_codec.encode_response(topics, version, throttle_time_ms)
    assert ours == schema.response_encoder(ApiKey.PRODUCE, version)(expected)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=15)
@given(name=names, topic_id=topic_ids, offsets=st.tuples(int32, int64, int64, int64), correlation_id=int32)
def test_the_short_cut_for_one_partition_writes_the_same_frame(
    version: int, name: str, topic_id: bytes, offsets: tuple[int, int, int, int], correlation_id: int
) -> None:
    index, base_offset, append_time, start = offsets
    known_id = TopicId(topic_id) if version >= produce_codec.TOPIC_IDS_FROM else None
    topic = produce_codec.TopicResult(
        name, known_id, [produce_codec.PartitionResult(index, 0, base_offset, append_time, start)]
    )
    body = produce_codec.encode_response([topic], version)
    flexible = schema.response_header_version(ApiKey.PRODUCE, version) >= 1
    assert produce_codec.encode_single_success(
        correlation_id, version, name, known_id, index, base_offset, append_time, start
    ) == response_frame(correlation_id, body, flexible=flexible)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=15)
@given(request=fetch_requests)
def test_fetch_requests_are_read_as_the_schema_reads_them(
    version: int, request: fetch_messages.FetchRequest
) -> None:
    data = schema.request_encoder(ApiKey.FETCH, version)(request)
    theirs = schema.request_decoder(ApiKey.FETCH, version)(data, 0)
    ours = fetch_codec.decode_request(memoryview(data), 0, len(data), version)
    replica_id = theirs.replica_state.replica_id if version >= 15 else theirs.replica_id
    assert ours[:8] == (
        replica_id,
        theirs.replica_state.replica_epoch,
        theirs.max_wait_ms,
        theirs.min_bytes,
        theirs.max_bytes,
        theirs.isolation_level,
        theirs.session_id,
        theirs.session_epoch,
    )
    by_id = version >= fetch_codec.TOPIC_IDS_FROM
    assert ours.rack_id == theirs.rack_id
    assert [(t.topic, t.topic_id, t.partitions) for t in ours.topics] == [
        (
            "" if by_id else topic.topic,
            topic.topic_id if by_id else None,
            [
                (
                    partition.partition,
                    partition.current_leader_epoch,
                    partition.fetch_offset,
                    partition.last_fetched_epoch,
                    partition.log_start_offset,
                    partition.partition_max_bytes,
                )
                for partition in topic.partitions
            ],
        )
        for topic in theirs.topics
    ]
    assert [(t.topic, t.topic_id, list(t.partitions)) for t in ours.forgotten] == [
        ("" if by_id else topic.topic, topic.topic_id if by_id else None, topic.partitions)
        for topic in theirs.forgotten_topics_data
    ]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=15)
@given(request=fetch_requests, data=st.data())
def test_a_fetch_request_cut_anywhere_is_refused(
    version: int, request: fetch_messages.FetchRequest, data: st.DataObject
) -> None:
    whole = schema.request_encoder(ApiKey.FETCH, version)(request)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRequest):
        fetch_codec.decode_request(memoryview(whole)[:end], 0, end, version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=40)
@given(
    request=fetch_requests,
    name=names,
    topic_id=topic_ids,
    again=st.tuples(int32, int64),
    data=st.data(),
)
def test_a_consumer_that_repeats_itself_is_known_by_all_but_its_offset(
    version: int,
    request: fetch_messages.FetchRequest,
    name: str,
    topic_id: bytes,
    again: tuple[int, int],
    data: st.DataObject,
) -> None:
    request.topics = [
        fetch_messages.FetchTopic(
            topic=name,
            topic_id=TopicId(topic_id),
            partitions=[fetch_messages.FetchPartition(partition=3, fetch_offset=5, partition_max_bytes=9)],
        )
    ]
    request.forgotten_topics_data = []

    def shape_of(body: bytes) -> fetch_codec.RequestShape | None:
        whole = memoryview(b"head" + body)
        decoded = fetch_codec.decode_request(whole, 4, len(whole), version)
        return fetch_codec.request_shape(whole, 4, len(whole), version, decoded)

    encode = schema.request_encoder(ApiKey.FETCH, version)
    first = encode(request)
    shape = shape_of(first)
    assert (shape is not None) == (version >= fetch_codec.FLEXIBLE_FROM)
    if shape is None:
        return
    request.session_epoch, request.topics[0].partitions[0].fetch_offset = again
    second = memoryview(b"head" + encode(request))
    assert fetch_codec.repeated(shape, second, 4, len(second)) == again
    assert fetch_codec.repeated(shape, second, 4, len(second) - 1) is None
    assert fetch_codec.repeated(shape, second, 3, len(second)) is None

    # Whatever differs elsewhere makes it another request.
    changed = bytearray(second)
    at = data.draw(st.integers(4, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    holes = (*range(shape.epoch_at, shape.epoch_at + 4), *range(shape.offset_at, shape.offset_at + 8))
    found = fetch_codec.repeated(shape, memoryview(changed), 4, len(changed))
    assert (found is not None) == (at - 4 in holes)

    # A count in more bytes than it needs says the same, but all else stands elsewhere then.
    count_at = shape.epoch_at + 4
    assert first[count_at] == 2
    assert shape_of(first[:count_at] + b"\x82\0" + first[count_at + 1 :]) is None

    two = request.topics * 2
    request.topics = two
    assert shape_of(encode(request)) is None


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)


def _joined(chunks: Iterable[bytes | fetch_codec.Slice]) -> bytes:
    return b"".join(chunk if isinstance(chunk, bytes) else cast("_Bytes", chunk).data for chunk in chunks)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=15)
@given(
    topics=st.lists(
        st.builds(
            fetch_codec.TopicData,
            names,
            topic_ids,
            st.lists(
                st.builds(
                    fetch_codec.PartitionData,
                    int32,
                    int16,
                    int64,
                    int64,
                    int64,
                    st.none() | st.binary(min_size=1, max_size=200).map(_Bytes),
                    st.none() | st.lists(st.tuples(int64, int64), max_size=3),
                    int32,
                    st.none() | st.tuples(int32, int32),
                    st.none() | st.tuples(int32, int64),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
    session_id=int32,
)
def test_fetch_responses_are_what_the_schema_writes(
    version: int, topics: list[fetch_codec.TopicData], session_id: int
) -> None:
    expected = fetch_messages.FetchResponse(
        session_id=session_id,
        responses=[
            fetch_messages.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id or bytes(16),
                partitions=[_fetch_partition(data, version) for data in topic.partitions],
            )
            for topic in topics
        ],
    )
    chunks = fetch_codec.encode_response(topics, session_id, version)
    ours = _joined(chunks)
    assert ours == schema.response_encoder(ApiKey.FETCH, version)(expected)
    assert fetch_codec.body_size(chunks) == len(ours)
    frame = fetch_codec.encode_frame(7, topics, session_id, version)
    assert _joined(frame) == response_frame(7, ours, flexible=version >= fetch_codec.FLEXIBLE_FROM)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=15)
@given(
    name=names,
    topic_id=topic_ids,
    data=st.builds(
        fetch_codec.PartitionData,
        int32,
        st.just(0),
        int64,
        int64,
        int64,
        st.none() | st.binary(min_size=1, max_size=300).map(_Bytes),
        st.none() | st.lists(st.tuples(int64, int64), max_size=1),
        int32,
        st.none() | st.tuples(int32, int32),
        st.none() | st.tuples(int32, int64),
    ),
    session_id=int32,
    correlation_id=int32,
)
def test_a_frame_is_what_the_general_way_writes_also_by_the_short_one(
    version: int,
    name: str,
    topic_id: bytes,
    data: fetch_codec.PartitionData,
    session_id: int,
    correlation_id: int,
) -> None:
    known_id = TopicId(topic_id) if version >= fetch_codec.TOPIC_IDS_FROM else None
    topic = fetch_codec.TopicData(name, known_id, [data])
    chunks = fetch_codec.encode_frame(correlation_id, [topic], session_id, version)
    body = fetch_codec.encode_response([topic], session_id, version)
    flexible = version >= fetch_codec.FLEXIBLE_FROM
    assert _joined(chunks) == response_frame(correlation_id, _joined(body), flexible=flexible)
    assert isinstance(chunks[0], bytes)
    assert data.records is None or chunks[1] is data.records, "the records stay where they are"


def _produce_partition(
    result: produce_codec.PartitionResult, version: int
) -> produce_messages.PartitionProduceResponse:
    response = produce_messages.PartitionProduceResponse(
        index=result.partition,
        error_code=result.error_code,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=[
            produce_messages.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
            for index, text in result.record_errors
        ],
        error_message=result.error_message,
    )
    if result.current_leader is not None and version >= 10:
        response.current_leader = produce_messages.LeaderIdAndEpoch(
            leader_id=result.current_leader[0], leader_epoch=result.current_leader[1]
        )
    return response


def _fetch_partition(data: fetch_codec.PartitionData, version: int) -> fetch_messages.PartitionData:
    response = fetch_messages.PartitionData(
        partition_index=data.partition,
        error_code=data.error_code,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        aborted_transactions=None
        if data.aborted is None
        else [
            fetch_messages.AbortedTransaction(producer_id=producer, first_offset=offset)
            for producer, offset in data.aborted
        ],
        preferred_read_replica=data.preferred_read_replica,
        records=data.records.data if isinstance(data.records, _Bytes) else b"",
    )
    if version >= 12:
        if data.current_leader is not None:
            response.current_leader = fetch_messages.LeaderIdAndEpoch(
                leader_id=data.current_leader[0], leader_epoch=data.current_leader[1]
            )
        if data.diverging_epoch is not None:
            response.diverging_epoch = fetch_messages.EpochEndOffset(
                epoch=data.diverging_epoch[0], end_offset=data.diverging_epoch[1]
            )
    return response
