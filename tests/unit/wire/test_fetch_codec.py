"""Fetch requests that are not what they claim are refused. That good ones are read and written as the schema
says is in `tests/conformance/wire`."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.core.ids import TopicId
from millrace.wire import fetch_codec, schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

LIMIT = 10
VERSIONS = [4, 7, 11, 12, 13, 17]


def request(version: int, topics: list[int], forgotten: list[int] | None = None) -> memoryview:
    """With so many partitions in each topic, and in each forgotten one."""

    def name(number: int) -> dict[str, Any]:
        is_by_id = version >= fetch_codec.TOPIC_IDS_FROM
        return {"topic_id": TopicId(bytes([number]) * 16)} if is_by_id else {"topic": f"topic-{number}"}

    message = FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        topics=[
            FetchTopic(
                partitions=[
                    FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
                    for index in range(count)
                ],
                **name(number),
            )
            for number, count in enumerate(topics)
        ],
        forgotten_topics_data=[
            ForgottenTopic(partitions=list(range(count)), **name(number))
            for number, count in enumerate(forgotten or [])
        ],
    )
    return memoryview(schema.request_encoder(ApiKey.FETCH, version)(message))


def decode(data: memoryview, version: int) -> fetch_codec.FetchRequest:
    return fetch_codec.decode_request(data, 0, len(data), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", [[LIMIT - 1], [4, 4], [0] * LIMIT, []])
def test_a_request_may_have_so_many_topics_and_partitions(
    version: int, topics: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_codec, "REQUEST_PARTITIONS_MAX", LIMIT)
    decoded = decode(request(version, topics), version)
    assert [len(topic.partitions) for topic in decoded.topics] == topics


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", [[LIMIT], [4, 5], [0] * (LIMIT + 1)])
def test_and_not_one_more(version: int, topics: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_codec, "REQUEST_PARTITIONS_MAX", LIMIT)
    with pytest.raises(MalformedRequest, match="more than 10 topics and partitions"):
        decode(request(version, topics), version)


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize("forgotten", [[6], [0] * 7])
def test_what_a_session_shall_forget_counts_as_well(
    version: int, forgotten: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_codec, "REQUEST_PARTITIONS_MAX", LIMIT)
    assert decode(request(version, [3], forgotten[:-1] or [5]), version).forgotten
    with pytest.raises(MalformedRequest, match="more than 10 topics and partitions"):
        decode(request(version, [3], forgotten), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_off_or_too_long_is_refused(version: int) -> None:
    data = request(version, [2, 1])
    for size in range(len(data)):
        with pytest.raises(MalformedRequest):
            decode(data[:size], version)
    with pytest.raises(MalformedRequest, match="1 bytes follow"):
        decode(memoryview(bytes(data) + b"\0"), version)


def test_a_name_that_is_not_text_is_refused() -> None:
    data = bytes(request(11, [1])).replace(b"topic-0", b"topic-\xff")
    with pytest.raises(MalformedRequest, match="not UTF-8"):
        decode(memoryview(data), 11)
