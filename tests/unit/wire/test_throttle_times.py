"""A throttle time gets into every answer that has room for it, and changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.handlers import APIS
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.fetch_codec import PartitionData, TopicData, encode_frame
from millrace.wire.framing import NodeEndpoint, response_frame
from millrace.wire.produce_codec import PartitionResult, TopicResult, encode_response
from millrace.wire.throttle_times import Place, place_of, told, told_in_chunks

KEPT = [(api.key, version) for api in APIS for version in range(api.versions[0], api.versions[1] + 1)]


def decoded(key: int, version: int, frame: bytes) -> Any:
    at = 9 if schema.response_header_version(key, version) >= 1 else 8
    return schema.response_decoder(key, version)(frame, at)


@pytest.mark.parametrize("key, version", KEPT, ids=lambda value: getattr(value, "name", str(value)))
def test_every_version_of_every_api(key: ApiKey, version: int) -> None:
    response: Any = schema.message_class(key, "Response")()
    flexible = schema.response_header_version(key, version) >= 1
    encoded = schema.response_encoder(key, version)(response)
    frame = response_frame(77, encoded, flexible=flexible)
    changed = told(key, version, frame, 1_234)
    if place_of(key, version) is Place.ABSENT:
        assert changed == frame
        return
    assert len(changed) == len(frame)
    expected = decoded(key, version, frame)
    expected.throttle_time_ms = 1_234
    assert decoded(key, version, changed) == expected


def test_a_produce_answer_with_leaders_keeps_them() -> None:
    result = PartitionResult(3, 6, error_message="elsewhere", current_leader=(2, 5))
    body = encode_response([TopicResult("t", None, [result])], 12, 0, [NodeEndpoint(2, "host", 9, None)])
    frame = response_frame(1, body, flexible=True)
    changed = told(ApiKey.PRODUCE, 12, frame, 5_000)
    assert changed[:9] == frame[:9]
    answer = decoded(ApiKey.PRODUCE, 12, changed)
    assert answer.throttle_time_ms == 5_000
    assert answer.node_endpoints[0].host == "host"
    assert answer.responses[0].partition_responses[0].current_leader.leader_epoch == 5


def test_a_frame_in_pieces_is_told_in_the_first() -> None:
    topics = [TopicData("t", None, [PartitionData(0, 0, 1, 1, 0), PartitionData(1, 3, -1, -1, -1)])]
    chunks = encode_frame(4, topics, 9, 12)
    assert isinstance(chunks, list)
    changed = told_in_chunks(ApiKey.FETCH, 12, chunks, 2**40)
    assert changed[1:] == chunks[1:]
    whole = b"".join(chunk for chunk in changed if isinstance(chunk, bytes))
    answer = decoded(ApiKey.FETCH, 12, whole)
    assert answer.throttle_time_ms == 2**31 - 1
    assert answer.session_id == 9
