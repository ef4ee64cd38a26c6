"""Followers' fetches: the leader's codec reads what the follower's writes, and the other way round."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.wire import fetch_codec
from millrace.wire.errors import MalformedRequest
from millrace.wire.fetch_codec import PartitionData, TopicData
from millrace.wire.replica_fetch_codec import VERSION, ReplicaResponse, Wanted, encode_request

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPIC_IDS = st.sampled_from([TopicId(bytes([number]) * 16) for number in range(1, 4)])
WANTED = st.builds(Wanted, TOPIC_IDS, INT32, INT32, INT64, INT32, INT64, INT32)


class Records:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)


DATA = st.builds(
    PartitionData,
    INT32,
    st.integers(-1, 120),
    INT64,
    st.just(-1),
    INT64,
    st.none() | st.binary(min_size=1, max_size=300).map(Records),
    st.none(),
    st.just(-1),
    st.none() | st.tuples(INT32, INT32),
    st.none() | st.tuples(INT32, INT64),
)


@given(
    wanted=st.lists(WANTED, max_size=6),
    forgotten=st.lists(st.tuples(TOPIC_IDS, INT32), max_size=6),
    session=st.tuples(INT32, INT32),
    replica=st.tuples(st.integers(0, 2**31 - 1), INT64),
)
def test_the_leader_reads_what_the_follower_asks(
    wanted: list[Wanted],
    forgotten: list[tuple[TopicId, int]],
    session: tuple[int, int],
    replica: tuple[int, int],
) -> None:
    body = encode_request(
        replica_id=replica[0],
        replica_epoch=replica[1],
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1000,
        session_id=session[0],
        session_epoch=session[1],
        wanted=wanted,
        forgotten=forgotten,
    )
    request = fetch_codec.decode_request(memoryview(body), 0, len(body), VERSION)
    assert (request.replica_id, request.replica_epoch) == replica
    assert (request.session_id, request.session_epoch) == session
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 1000)
    read = [(topic.topic_id, *each) for topic in request.topics for each in topic.partitions]
    assert sorted(read, key=repr) == sorted(map(tuple, wanted), key=repr)
    gone = [(topic.topic_id, index) for topic in request.forgotten for index in topic.partitions]
    assert sorted(gone, key=repr) == sorted(forgotten, key=repr)


def encode(topics: list[TopicData], session_id: int) -> bytes:
    chunks = fetch_codec.encode_response(topics, session_id, VERSION)
    return b"".join(
        chunk if isinstance(chunk, bytes) else chunk.data  # type: ignore[attr-defined]
        for chunk in chunks
    )


@given(data=st.lists(st.tuples(TOPIC_IDS, DATA), max_size=5), session_id=INT32)
def test_the_follower_reads_what_the_leader_answers(
    data: list[tuple[TopicId, PartitionData]], session_id: int
) -> None:
    body = encode([TopicData("", topic_id, [each]) for topic_id, each in data], session_id)
    response = ReplicaResponse(memoryview(body), 0, len(body))
    assert (response.error_code, response.session_id) == (0, session_id)
    for (topic_id, sent), read in zip(data, response.partitions(), strict=True):
        assert (read.topic_id, read.partition, read.error_code) == (
            topic_id,
            sent.partition,
            sent.error_code,
        )
        assert (read.high_watermark, read.log_start_offset) == (sent.high_watermark, sent.log_start_offset)
        assert (read.diverging, read.current_leader) == (sent.diverging_epoch, sent.current_leader)
        records = None if read.records is None else bytes(read.records)
        assert records == (None if sent.records is None else sent.records.data)  # type: ignore[attr-defined]


@given(data=st.lists(st.tuples(TOPIC_IDS, DATA), min_size=1, max_size=3), cut=st.integers(1, 10_000))
def test_a_cut_answer_is_refused(data: list[tuple[TopicId, PartitionData]], cut: int) -> None:
    body = encode([TopicData("", topic_id, [each]) for topic_id, each in data], 1)
    body = body[: max(len(body) - cut, 0)]
    with pytest.raises(MalformedRequest):
        list(ReplicaResponse(memoryview(body), 0, len(body)).partitions())


@given(noise=st.binary(max_size=200))
def test_noise_ends_in_a_refusal_or_an_answer(noise: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        list(ReplicaResponse(memoryview(noise), 0, len(noise)).partitions())
