"""Requests of share consumers that are not what they claim are refused. That good ones are read and written
as the schema says is in `tests/conformance/wire`."""

from __future__ import annotations

import pytest

from millrace.wire import schema, share_codec
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millrace.wire.messages.share_fetch import FetchPartition, FetchTopic, ForgottenTopic, ShareFetchRequest

LIMIT = 10


def fetch(partitions: list[int], forgotten: list[int]) -> memoryview:
    message = ShareFetchRequest(
        group_id="g",
        member_id="m",
        topics=[
            FetchTopic(
                topic_id=bytes(16), partitions=[FetchPartition(partition_index=n) for n in range(count)]
            )
            for count in partitions
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic_id=bytes(16), partitions=list(range(count))) for count in forgotten
        ],
    )
    return memoryview(schema.request_encoder(ApiKey.SHARE_FETCH, 2)(message))


def acks(count: int) -> memoryview:
    batches = [
        AcknowledgementBatch(first_offset=n, last_offset=n, acknowledge_types=[1]) for n in range(count)
    ]
    message = ShareAcknowledgeRequest(
        group_id="g",
        member_id="m",
        topics=[
            AcknowledgeTopic(
                topic_id=bytes(16),
                partitions=[
                    AcknowledgePartition(partition_index=0, acknowledgement_batches=batches[:3]),
                    AcknowledgePartition(partition_index=1, acknowledgement_batches=batches[3:]),
                ],
            )
        ],
    )
    return memoryview(schema.request_encoder(ApiKey.SHARE_ACKNOWLEDGE, 1)(message))


@pytest.mark.parametrize("partitions, forgotten", [([9], []), ([4, 4], []), ([3], [5]), ([0] * 10, [])])
def test_a_request_may_have_so_many_topics_and_partitions(
    partitions: list[int], forgotten: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_codec, "REQUEST_PARTITIONS_MAX", LIMIT)
    data = fetch(partitions, forgotten)
    found = share_codec.decode_fetch(data, 0, len(data), 2)
    assert len(found.partitions) == sum(partitions)
    assert len(found.forgotten) == sum(forgotten)


@pytest.mark.parametrize("partitions, forgotten", [([10], []), ([4, 5], []), ([3], [6])])
def test_and_not_one_more(
    partitions: list[int], forgotten: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_codec, "REQUEST_PARTITIONS_MAX", LIMIT)
    data = fetch(partitions, forgotten)
    with pytest.raises(MalformedRequest, match="more than 10 topics and partitions"):
        share_codec.decode_fetch(data, 0, len(data), 2)


def test_the_acknowledgement_batches_of_a_request_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_codec, "ACK_BATCHES_MAX", LIMIT)
    data = acks(LIMIT)
    found = share_codec.decode_acknowledge(data, 0, len(data), 1)
    assert [len(each.acks) for each in found.partitions] == [3, 7]
    data = acks(LIMIT + 1)
    with pytest.raises(MalformedRequest, match="more than 10 acknowledgement batches"):
        share_codec.decode_acknowledge(data, 0, len(data), 1)


def test_what_follows_a_request_is_refused() -> None:
    data = memoryview(bytes(acks(1)) + b"\0")
    with pytest.raises(MalformedRequest, match="1 bytes follow"):
        share_codec.decode_acknowledge(data, 0, len(data), 1)


def test_a_name_that_is_no_text_is_refused() -> None:
    data = memoryview(bytes(acks(1)).replace(b"\2m", b"\2\xff"))
    with pytest.raises(MalformedRequest, match="not UTF-8"):
        share_codec.decode_acknowledge(data, 0, len(data), 1)


def test_an_answer_that_tells_nothing_is_the_same_in_short() -> None:
    (frame,) = share_codec.fetch_frame(7, (), lock_ms=30_000)
    assert share_codec.empty_fetch_frame(7, 30_000) == frame
