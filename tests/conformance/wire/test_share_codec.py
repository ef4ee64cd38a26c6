"""The hand-made codec of ShareFetch and ShareAcknowledge against the compiled ones."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.wire import schema, share_codec
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest
from millrace.wire.fetch_codec import Slice
from millrace.wire.framing import NodeEndpoint, response_frame
from millrace.wire.messages import share_acknowledge as ack_messages
from millrace.wire.messages import share_fetch as fetch_messages

int8 = st.integers(-(2**7), 2**7 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8", categories=("L", "N")), max_size=200)
topic_ids = st.binary(min_size=16, max_size=16)
VERSIONS = range(share_codec.VERSIONS[0], share_codec.VERSIONS[1] + 1)


def ack_batches(module: object) -> st.SearchStrategy[list[object]]:
    return st.lists(
        st.builds(
            module.AcknowledgementBatch,  # type: ignore[attr-defined]
            first_offset=int64,
            last_offset=int64,
            acknowledge_types=st.lists(int8, max_size=200),
        ),
        max_size=3,
    )


fetch_requests = st.builds(
    fetch_messages.ShareFetchRequest,
    group_id=st.none() | names,
    member_id=st.none() | names,
    share_session_epoch=int32,
    max_wait_ms=int32,
    min_bytes=int32,
    max_bytes=int32,
    max_records=int32,
    batch_size=int32,
    share_acquire_mode=int8,
    is_renew_ack=st.booleans(),
    topics=st.lists(
        st.builds(
            fetch_messages.FetchTopic,
            topic_id=topic_ids,
            partitions=st.lists(
                st.builds(
                    fetch_messages.FetchPartition,
                    partition_index=int32,
                    acknowledgement_batches=ack_batches(fetch_messages),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
    forgotten_topics_data=st.lists(
        st.builds(
            fetch_messages.ForgottenTopic, topic_id=topic_ids, partitions=st.lists(int32, max_size=200)
        ),
        max_size=3,
    ),
)

ack_requests = st.builds(
    ack_messages.ShareAcknowledgeRequest,
    group_id=st.none() | names,
    member_id=st.none() | names,
    share_session_epoch=int32,
    is_renew_ack=st.booleans(),
    topics=st.lists(
        st.builds(
            ack_messages.AcknowledgeTopic,
            topic_id=topic_ids,
            partitions=st.lists(
                st.builds(
                    ack_messages.AcknowledgePartition,
                    partition_index=int32,
                    acknowledgement_batches=ack_batches(ack_messages),
                ),
                max_size=3,
            ),
        ),
        max_size=3,
    ),
)


def asked(
    topics: list[fetch_messages.FetchTopic] | list[ack_messages.AcknowledgeTopic],
) -> list[share_codec.PartitionAsked]:
    return [
        share_codec.PartitionAsked(
            topic.topic_id,  # type: ignore[arg-type]
            partition.partition_index,
            [
                share_codec.AckBatch(
                    batch.first_offset,
                    batch.last_offset,
                    bytes(number & 0xFF for number in batch.acknowledge_types),
                )
                for batch in partition.acknowledgement_batches
            ],
        )
        for topic in topics
        for partition in topic.partitions
    ]


def listed(partitions: list[share_codec.PartitionAsked]) -> list[share_codec.PartitionAsked]:
    return [each._replace(acks=list(each.acks)) for each in partitions]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(request=fetch_requests)
def test_fetches_are_read_as_the_schema_reads_them(
    version: int, request: fetch_messages.ShareFetchRequest
) -> None:
    data = schema.request_encoder(ApiKey.SHARE_FETCH, version)(request)
    found = share_codec.decode_fetch(memoryview(b"ab" + data + b"c"), 2, 2 + len(data), version)
    assert found._replace(partitions=listed(found.partitions)) == share_codec.ShareFetchRequest(
        request.group_id,
        request.member_id,
        request.share_session_epoch,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.max_records,
        request.batch_size,
        request.share_acquire_mode if version >= 2 else 0,
        request.is_renew_ack if version >= 2 else False,
        asked(request.topics),
        [
            (forgotten.topic_id, index)  # type: ignore[misc]
            for forgotten in request.forgotten_topics_data
            for index in forgotten.partitions
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(request=ack_requests)
def test_acknowledgements_are_read_as_the_schema_reads_them(
    version: int, request: ack_messages.ShareAcknowledgeRequest
) -> None:
    data = schema.request_encoder(ApiKey.SHARE_ACKNOWLEDGE, version)(request)
    found = share_codec.decode_acknowledge(memoryview(data), 0, len(data), version)
    assert found._replace(partitions=listed(found.partitions)) == share_codec.ShareAcknowledgeRequest(
        request.group_id,
        request.member_id,
        request.share_session_epoch,
        request.is_renew_ack if version >= 2 else False,
        asked(request.topics),
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(request=fetch_requests, other=ack_requests, data=st.data())
def test_a_request_cut_anywhere_is_refused(
    version: int,
    request: fetch_messages.ShareFetchRequest,
    other: ack_messages.ShareAcknowledgeRequest,
    data: st.DataObject,
) -> None:
    whole = schema.request_encoder(ApiKey.SHARE_FETCH, version)(request)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRequest):
        share_codec.decode_fetch(memoryview(whole)[:end], 0, end, version)
    whole = schema.request_encoder(ApiKey.SHARE_ACKNOWLEDGE, version)(other)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRequest):
        share_codec.decode_acknowledge(memoryview(whole)[:end], 0, end, version)


class FakeSlice:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def is_cold(self) -> bool:
        return False

    def read(self) -> bytes:
        return self._data


def joined(chunks: list[bytes | Slice]) -> bytes:
    return b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in chunks)


texts = st.none() | names
leaders = st.none() | st.tuples(int32, int32)
results = st.lists(
    st.tuples(
        topic_ids,
        st.lists(
            st.builds(
                share_codec.PartitionResult,
                partition=int32,
                error_code=int16,
                error_message=texts,
                ack_error_code=int16,
                ack_error_message=texts,
                leader=leaders,
                records=st.lists(
                    st.binary(min_size=1, max_size=200)
                    | st.builds(FakeSlice, st.binary(min_size=1, max_size=200)),
                    max_size=3,
                ),
                acquired=st.lists(st.tuples(int64, int64, int16), max_size=3),
            ),
            max_size=3,
        ),
    ),
    max_size=3,
)
endpoints = st.lists(st.builds(NodeEndpoint, int32, names, int32, texts), max_size=2)


def leader_of(module: object, leader: tuple[int, int] | None) -> object:
    found = module.LeaderIdAndEpoch()  # type: ignore[attr-defined]
    return (
        found if leader is None else dataclasses.replace(found, leader_id=leader[0], leader_epoch=leader[1])
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(results=results, lock_ms=int32, code=int16, message=texts, endpoints=endpoints)
def test_answers_are_what_the_schema_writes(
    version: int,
    results: list[tuple[TopicId, list[share_codec.PartitionResult]]],
    lock_ms: int,
    code: int,
    message: str | None,
    endpoints: list[NodeEndpoint],
) -> None:
    told: dict[str, object] = {
        "error_code": code,
        "error_message": message,
        "acquisition_lock_timeout_ms": lock_ms,
    }
    nodes = [
        {"node_id": node, "host": host, "port": port, "rack": rack} for node, host, port, rack in endpoints
    ]
    fetched = fetch_messages.ShareFetchResponse(
        **told,  # type: ignore[arg-type]
        node_endpoints=[fetch_messages.NodeEndpoint(**node) for node in nodes],  # type: ignore[arg-type]
        responses=[
            fetch_messages.ShareFetchableTopicResponse(
                topic_id=topic_id,
                partitions=[
                    fetch_messages.PartitionData(
                        partition_index=each.partition,
                        error_code=each.error_code,
                        error_message=each.error_message,
                        acknowledge_error_code=each.ack_error_code,
                        acknowledge_error_message=each.ack_error_message,
                        current_leader=leader_of(fetch_messages, each.leader),  # type: ignore[arg-type]
                        records=joined(list(each.records)),
                        acquired_records=[
                            fetch_messages.AcquiredRecords(
                                first_offset=first, last_offset=last, delivery_count=count
                            )
                            for first, last, count in each.acquired
                        ],
                    )
                    for each in partitions
                ],
            )
            for topic_id, partitions in results
        ],
    )
    frame = share_codec.fetch_frame(
        7,
        results,
        lock_ms=lock_ms,
        error_code=code,
        error_message=message,
        endpoints=endpoints,
    )
    body = schema.response_encoder(ApiKey.SHARE_FETCH, version)(fetched)
    assert joined(frame) == response_frame(7, body, flexible=True)

    acknowledged = ack_messages.ShareAcknowledgeResponse(
        **told,  # type: ignore[arg-type]
        node_endpoints=[ack_messages.NodeEndpoint(**node) for node in nodes],  # type: ignore[arg-type]
        responses=[
            ack_messages.ShareAcknowledgeTopicResponse(
                topic_id=topic_id,
                partitions=[
                    ack_messages.PartitionData(
                        partition_index=each.partition,
                        error_code=each.error_code,
                        error_message=each.error_message,
                        current_leader=leader_of(ack_messages, each.leader),  # type: ignore[arg-type]
                    )
                    for each in partitions
                ],
            )
            for topic_id, partitions in results
        ],
    )
    body = schema.response_encoder(ApiKey.SHARE_ACKNOWLEDGE, version)(acknowledged)
    assert share_codec.acknowledge_frame(
        7,
        version,
        results,
        lock_ms=lock_ms,
        error_code=code,
        error_message=message,
        endpoints=endpoints,
    ) == response_frame(7, body, flexible=True)
