"""Fetch by hand is the same as Fetch by the schema."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import BrokerRefused, ConnectionFailed
from millrace.client.fetch_frames import VERSIONS, decode_response, encode_request
from millrace.core.ids import TopicId
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)

TOPIC = TopicId(bytes(range(16)))
INT64 = st.integers(-1, 2**62)


def answer(version: int, *partitions: PartitionData, error_code: int = 0) -> bytes:
    topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))] if partitions else []
    message = FetchResponse(throttle_time_ms=0, error_code=error_code, session_id=0, responses=topics)
    return bytes(schema.response_encoder(ApiKey.FETCH, version)(message))


def partition(
    records: bytes | None = b"", aborted: list[tuple[int, int]] | None = None, error_code: int = 0
) -> PartitionData:
    return PartitionData(
        partition_index=3,
        error_code=error_code,
        high_watermark=30,
        last_stable_offset=20,
        log_start_offset=10,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=one, first_offset=two) for one, two in aborted],
        preferred_read_replica=-1,
        records=records,
    )


@given(
    st.integers(*VERSIONS),
    st.integers(0, 2**31 - 1),
    INT64,
    st.integers(0, 2**31 - 1),
    st.sampled_from((0, 1)),
)
def test_the_schema_reads_the_request(
    version: int, number: int, offset: int, size: int, isolation: int
) -> None:
    body = encode_request(
        TOPIC, number, offset, max_bytes=size, isolation=isolation, max_wait_ms=77, version=version
    )
    found = schema.request_decoder(ApiKey.FETCH, version)(body)
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes) == (77, 1, size)
    assert (found.isolation_level, found.session_id, found.session_epoch) == (isolation, 0, -1)
    ((asked,),) = [topic.partitions for topic in found.topics]
    assert found.topics[0].topic_id == TOPIC
    assert (asked.partition, asked.fetch_offset, asked.partition_max_bytes) == (number, offset, size)
    assert found.forgotten_topics_data == []


@given(
    st.integers(*VERSIONS),
    st.none() | st.binary(max_size=300),
    st.none() | st.lists(st.tuples(INT64, INT64), max_size=4),
)
def test_what_the_schema_writes_is_read(
    version: int, records: bytes | None, aborted: list[tuple[int, int]] | None
) -> None:
    found = decode_response(memoryview(answer(version, partition(records, aborted))), "t-3")
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (30, 20, 10)
    assert bytes(found.records) == (records or b"")
    assert found.aborted == (aborted or [])


def test_records_stay_where_they_are() -> None:
    body = memoryview(bytearray(answer(17, partition(b"records"))))
    found = decode_response(body, "t-3")
    assert found.records.obj is body.obj


def test_an_answer_that_is_cut_off_is_a_lost_connection() -> None:
    whole = answer(17, partition(b"records", [(1, 2)]))
    # Behind the records there are only three bytes that say that there are no tags.
    for end in range(len(whole) - 3):
        with pytest.raises(ConnectionFailed):
            decode_response(memoryview(whole[:end]), "t-3")


@given(st.binary(max_size=120))
def test_no_bytes_break_the_decoder(body: bytes) -> None:
    with contextlib.suppress(BrokerRefused, ConnectionFailed):
        found = decode_response(memoryview(body), "t-3")
        assert len(found.records) <= len(body)


def test_errors_of_the_request_and_of_the_partition_are_told_with_their_subject() -> None:
    for body in (answer(17, error_code=6), answer(17, partition(error_code=6))):
        with pytest.raises(BrokerRefused, match=r"t-3: .*NOT_LEADER_OR_FOLLOWER") as refused:
            decode_response(memoryview(body), "t-3")
        assert refused.value.retriable


def test_an_answer_for_no_topic_is_refused() -> None:
    with pytest.raises(ConnectionFailed, match="for 0 topics instead of one"):
        decode_response(memoryview(answer(17)), "t-3")
