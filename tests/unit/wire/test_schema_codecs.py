"""Edges of the compiled codecs, by example: the bytes are written out so that both directions are pinned."""

from __future__ import annotations

import struct

import pytest

from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest, UnknownVersion
from millrace.wire.messages.api_versions import ApiVersion, ApiVersionsResponse, SupportedFeatureKey
from millrace.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.fetch import FetchRequest, ReplicaState
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ORDERS_ID = bytes(range(16))


def test_a_classic_request_is_read_field_by_field() -> None:
    wire = b"\x00\x01g" + b"\x00\x00\x00\x07" + b"\x00\x02me" + b"\xff\xff"
    request = schema.request_decoder(ApiKey.HEARTBEAT, 3)(wire)
    assert request == HeartbeatRequest(group_id="g", generation_id=7, member_id="me", group_instance_id=None)
    assert schema.request_encoder(ApiKey.HEARTBEAT, 3)(request) == wire


def test_a_flexible_request_is_read_field_by_field() -> None:
    wire = b"\x02g" + b"\x00\x00\x00\x07" + b"\x03me" + b"\x00" + b"\x00"
    request = schema.request_decoder(ApiKey.HEARTBEAT, 4)(wire)
    assert request == HeartbeatRequest(group_id="g", generation_id=7, member_id="me", group_instance_id=None)
    assert schema.request_encoder(ApiKey.HEARTBEAT, 4)(request) == wire


@pytest.mark.parametrize("buffer_type", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_from_the_middle(buffer_type: type) -> None:
    wire = schema.request_encoder(ApiKey.HEARTBEAT, 4)(HeartbeatRequest(group_id="g", member_id="m"))
    decode = schema.request_decoder(ApiKey.HEARTBEAT, 4)
    assert decode(buffer_type(b"head" + wire), 4).group_id == "g"
    assert decode(buffer_type(b"head" + wire + b"tail"), 4, 4 + len(wire)).member_id == "m"


def test_decoded_bytes_do_not_change_with_the_buffer() -> None:
    wire = schema.request_encoder(ApiKey.SASL_AUTHENTICATE, 2)(
        schema.message_class(ApiKey.SASL_AUTHENTICATE, "Request")(auth_bytes=b"secret")  # type: ignore[call-arg]
    )
    buffer = bytearray(wire)
    request = schema.request_decoder(ApiKey.SASL_AUTHENTICATE, 2)(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert type(request.auth_bytes) is bytes
    assert request.auth_bytes == b"secret"


@pytest.mark.parametrize(
    "version, wire, topics",
    [
        (1, b"\xff\xff\xff\xff", None),
        (1, b"\x00\x00\x00\x00", []),
        (9, b"\x00\x01\x00\x00\x00", None),
        (9, b"\x01\x01\x00\x00\x00", []),
    ],
)
def test_null_and_empty_arrays_are_different_things(version: int, wire: bytes, topics: object) -> None:
    request = schema.request_decoder(ApiKey.METADATA, version)(wire)
    assert request.topics == topics
    assert schema.request_encoder(ApiKey.METADATA, version)(request) == wire


def test_null_where_it_is_not_allowed_is_refused_both_ways() -> None:
    with pytest.raises(MalformedRequest, match=r"HeartbeatRequest\.group_id"):
        schema.request_decoder(ApiKey.HEARTBEAT, 0)(b"\xff\xff\x00\x00\x00\x07\x00\x02me")
    with pytest.raises(MalformedRequest, match=r"HeartbeatRequest\.group_id"):
        schema.request_decoder(ApiKey.HEARTBEAT, 4)(b"\x00\x00\x00\x00\x07\x03me\x00\x00")
    with pytest.raises(ValueError, match="cluster_id: null is not allowed"):
        schema.response_encoder(ApiKey.DESCRIBE_CLUSTER, 0)(
            schema.message_class(ApiKey.DESCRIBE_CLUSTER, "Response")(cluster_id=None)  # type: ignore[call-arg]
        )


def test_a_length_of_minus_two_is_no_null() -> None:
    with pytest.raises(MalformedRequest, match="-2 bytes announced"):
        schema.request_decoder(ApiKey.HEARTBEAT, 3)(b"\x00\x01g\x00\x00\x00\x07\x00\x02me\xff\xfe")


def test_nested_arrays_and_uuids_keep_their_places() -> None:
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
        cluster_id="c",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="orders",
                topic_id=ORDERS_ID,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=p, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1]
                    )
                    for p in range(3)
                ],
            )
        ],
    )
    wire = schema.response_encoder(ApiKey.METADATA, 12)(response)
    assert schema.response_decoder(ApiKey.METADATA, 12)(wire) == response
    assert wire.count(ORDERS_ID) == 1
    old = schema.response_decoder(ApiKey.METADATA, 0)(schema.response_encoder(ApiKey.METADATA, 0)(response))
    assert old.topics[0].topic_id == bytes(16)
    assert old.topics[0].partitions[2].leader_epoch == -1
    assert old.cluster_id is None


def test_tagged_fields_are_sent_only_when_they_differ_from_the_default() -> None:
    encode = schema.request_encoder(ApiKey.FETCH, 15)
    plain = encode(FetchRequest())
    assert plain.endswith(b"\x00")
    tagged = encode(FetchRequest(cluster_id="c", replica_state=ReplicaState(replica_id=3, replica_epoch=9)))
    assert tagged[: len(plain) - 1] == plain[:-1]
    tail = b"\x02" + b"\x00\x02\x02c" + b"\x01\x0d" + struct.pack(">iq", 3, 9) + b"\x00"
    assert tagged[len(plain) - 1 :] == tail


def _fetch_with_tags(tags: bytes) -> bytes:
    plain = schema.request_encoder(ApiKey.FETCH, 15)(FetchRequest())
    return plain[:-1] + tags


def test_unknown_tagged_fields_are_skipped() -> None:
    decode = schema.request_decoder(ApiKey.FETCH, 15)
    unknown = b"\x02" + b"\x05\x03abc" + b"\x90\x4e\x00"
    assert decode(_fetch_with_tags(unknown)) == FetchRequest()


def test_tagged_fields_come_in_any_order_and_the_last_of_two_counts() -> None:
    decode = schema.request_decoder(ApiKey.FETCH, 15)
    state = b"\x01\x0d" + struct.pack(">iq", 3, 9) + b"\x00"
    request = decode(_fetch_with_tags(b"\x03" + state + b"\x00\x02\x02a" + b"\x00\x02\x02b"))
    assert request.cluster_id == "b"
    assert request.replica_state == ReplicaState(replica_id=3, replica_epoch=9)


@pytest.mark.parametrize(
    "tags",
    [
        b"\x01\x00\x03\x02a",  # announces more than the field takes
        b"\x01\x00\x01\x02a",  # announces less
        b"\x01\x09\x7f",  # reaches beyond the end
        b"\x7f",  # more fields than bytes
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\xff\x0f",
        b"\x01\x09",
        b"",
    ],
)
def test_tagged_fields_that_do_not_add_up_are_refused(tags: bytes) -> None:
    with pytest.raises(MalformedRequest):
        schema.request_decoder(ApiKey.FETCH, 15)(_fetch_with_tags(tags))


def test_a_tagged_array_that_may_be_null_is_sent_when_it_is_empty() -> None:
    # Null, the default, means "does not say"; empty means "none".
    for dirs in (None, [], [ORDERS_ID]):
        request = BrokerHeartbeatRequest(cordoned_log_dirs=dirs)
        wire = schema.request_encoder(ApiKey.BROKER_HEARTBEAT, 2)(request)
        assert schema.request_decoder(ApiKey.BROKER_HEARTBEAT, 2)(wire).cordoned_log_dirs == dirs


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 128, 16_382, 16_383, 16_384, 32_767])
@pytest.mark.parametrize("version", [3, 4])
def test_strings_of_every_prefix_length_survive(version: int, length: int) -> None:
    request = HeartbeatRequest(group_id="x" * length, member_id="m")
    wire = schema.request_encoder(ApiKey.HEARTBEAT, version)(request)
    assert schema.request_decoder(ApiKey.HEARTBEAT, version)(wire) == request


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 5_000])
def test_arrays_of_every_prefix_length_survive(count: int) -> None:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name=f"t{i}") for i in range(count)]
    )
    for version in (1, 4):
        wire = schema.request_encoder(ApiKey.DESCRIBE_CONFIGS, version)(request)
        assert schema.request_decoder(ApiKey.DESCRIBE_CONFIGS, version)(wire) == request


def test_a_string_longer_than_kafka_allows_is_refused_both_ways() -> None:
    too_long = HeartbeatRequest(group_id="x" * 32_768)
    for version in (3, 4):
        with pytest.raises(
            ValueError, match=f"HeartbeatRequest v{version}: group_id: longer than 32767 bytes"
        ):
            schema.request_encoder(ApiKey.HEARTBEAT, version)(too_long)
    wire = b"\x81\x80\x02" + b"x" * 32_768 + b"\x00\x00\x00\x07\x01\x00\x00"
    with pytest.raises(MalformedRequest, match="32768 bytes announced"):
        schema.request_decoder(ApiKey.HEARTBEAT, 4)(wire)


def test_a_compact_length_padded_with_zero_bits_is_read_as_kafka_reads_it() -> None:
    request = schema.request_decoder(ApiKey.HEARTBEAT, 4)(b"\x82\x80\x00g\x00\x00\x00\x07\x03me\x00\x00")
    assert request.group_id == "g"


@pytest.mark.parametrize("version", [0, 8, 9, 12])
def test_every_cut_of_a_request_is_refused(version: int) -> None:
    wire = schema.request_encoder(ApiKey.METADATA, version)(
        MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    )
    decode = schema.request_decoder(ApiKey.METADATA, version)
    for length in range(len(wire)):
        with pytest.raises(MalformedRequest):
            decode(wire[:length])


def test_bytes_behind_a_request_are_let_pass_but_not_behind_a_response() -> None:
    # As librdkafka 2.16 asks for all topics: the count is null, and three bytes of room for it stay behind.
    request = schema.request_decoder(ApiKey.METADATA, 13)(bytes.fromhex("00000000010000"))
    assert request.topics is None
    response = schema.response_encoder(ApiKey.METADATA, 13)(MetadataResponse())
    with pytest.raises(MalformedRequest, match="1 bytes are left over"):
        schema.response_decoder(ApiKey.METADATA, 13)(response + b"\x00")


@pytest.mark.parametrize(
    "version, count",
    [
        (1, b"\x7f\xff\xff\xff"),
        (1, b"\x80\x00\x00\x00"),
        (9, b"\xff\xff\xff\xff\x07"),
        (9, b"\x80\x80\x80\x80\x08"),
    ],
)
def test_a_count_beyond_the_bytes_that_remain_is_refused(version: int, count: bytes) -> None:
    # The frame that makes kio's own reader allocate 17 GB.
    with pytest.raises(MalformedRequest, match=r"MetadataRequest\.topics: -?\d+ elements announced"):
        schema.request_decoder(ApiKey.METADATA, version)(count + bytes(4))


def test_many_elements_of_almost_no_bytes_are_refused() -> None:
    count = 1_000_000
    head = bytes((count + 1 & 0x7F | 0x80, (count + 1) >> 7 & 0x7F | 0x80, (count + 1) >> 14))
    with pytest.raises(MalformedRequest, match="too much memory"):
        schema.request_decoder(ApiKey.METADATA, 9)(head + b"\x01\x00" * count + b"\x00\x00\x00\x00")


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="UTF-8"):
        schema.request_decoder(ApiKey.HEARTBEAT, 0)(b"\x00\x01\xff\x00\x00\x00\x07\x00\x02me")


def test_what_does_not_fit_is_named() -> None:
    encode = schema.response_encoder(ApiKey.METADATA, 12)
    topic = MetadataResponseTopic(partitions=[MetadataResponsePartition(leader_id=2**31)])
    with pytest.raises(
        ValueError, match=r"v12: topics\[1\]\.partitions\[0\]\.leader_id: 2147483648 is no int32"
    ):
        encode(MetadataResponse(topics=[MetadataResponseTopic(), topic]))
    with pytest.raises(ValueError, match=r"topics\[0\]\.topic_id: 3 bytes, not the 16 of a UUID"):
        encode(MetadataResponse(topics=[MetadataResponseTopic(topic_id=b"abc")]))
    with pytest.raises(ValueError, match="throttle_time_ms"):
        schema.response_encoder(ApiKey.HEARTBEAT, 1)(HeartbeatResponse(throttle_time_ms=None))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="HeartbeatRequest is no HeartbeatResponse"):
        schema.response_encoder(ApiKey.HEARTBEAT, 1)(HeartbeatRequest())


def test_fields_that_a_version_lacks_are_left_out() -> None:
    assert schema.response_encoder(ApiKey.HEARTBEAT, 0)(HeartbeatResponse(throttle_time_ms=5)) == b"\x00\x00"
    assert schema.response_decoder(ApiKey.HEARTBEAT, 0)(b"\x00\x1b").throttle_time_ms == 0


def test_the_answer_about_versions_has_a_header_that_everyone_reads() -> None:
    # A client that asks which versions exist cannot know the flexible header yet.
    assert schema.request_header_version(ApiKey.API_VERSIONS, 3) == 2
    assert [schema.response_header_version(ApiKey.API_VERSIONS, version) for version in range(6)] == [0] * 6
    assert schema.response_header_version(ApiKey.METADATA, 8) == 0
    assert schema.response_header_version(ApiKey.METADATA, 9) == 1
    assert schema.request_header_version(ApiKey.SASL_HANDSHAKE, 1) == 1
    response = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
        supported_features=[SupportedFeatureKey(name="f", max_version=1)],
    )
    for version in (0, 3):
        wire = schema.response_encoder(ApiKey.API_VERSIONS, version)(response)
        assert schema.response_decoder(ApiKey.API_VERSIONS, version)(wire).api_keys == response.api_keys


def test_unknown_apis_and_versions_are_named() -> None:
    with pytest.raises(UnknownVersion, match="Metadata v99: versions 0 to 13 are known"):
        schema.request_decoder(ApiKey.METADATA, 99)
    with pytest.raises(UnknownVersion, match="Produce v2: versions 3 to 13 are known"):
        schema.response_encoder(ApiKey.PRODUCE, 2)
    with pytest.raises(UnknownVersion, match="API 999 v0: no such API is known"):
        schema.request_decoder(999, 0)
    assert not schema.is_known(999)
    assert schema.versions(ApiKey.PRODUCE) == (3, 13)
    assert schema.api_name(ApiKey.DESCRIBE_CONFIGS) == "DescribeConfigs"


def test_codecs_are_compiled_once() -> None:
    assert schema.request_decoder(ApiKey.METADATA, 5) is schema.request_decoder(ApiKey.METADATA, 5)
