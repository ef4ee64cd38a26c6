"""ApiVersions, Metadata and describing APIs on the wire, and what happens to requests nobody knows (S3)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import pytest

from tests.harness.process import BrokerProcess
from tests.harness.protocol import topic_metadata
from tests.harness.raw import (
    API_VERSIONS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
    Plain,
    RawConnection,
    decode_response,
)
from tests.harness.topics import create_topic, unique_name

CLIENT = {"client_software_name": "millrace-tests", "client_software_version": "1.0"}
NOT_ASKED = -(2**31)
ALL_TOPIC_OPERATIONS = 3_576


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[RawConnection]:
    with RawConnection((broker.host, broker.port)) as opened:
        yield opened


@pytest.fixture(scope="module")
def topic(broker: BrokerProcess) -> str:
    return create_topic(broker.bootstrap, unique_name("wire"), partitions=2)


def ranges(answer: Plain) -> dict[int, tuple[int, int]]:
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in answer["api_keys"]}


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_api_versions_lists_the_same(version: int, connection: RawConnection) -> None:
    answer = connection.call(API_VERSIONS, version, CLIENT if version >= 3 else {})
    assert answer["error_code"] == "none"
    listed = ranges(answer)
    assert listed[API_VERSIONS] == (0, 4)
    assert listed[0] == (0, 13)
    assert listed[1] == (4, 18)
    if version == 4:
        assert listed == ranges(connection.call(API_VERSIONS, 0))


def test_an_unknown_version_of_api_versions_falls_back(connection: RawConnection) -> None:
    # A newer client learns from this answer which version to use; closing would lock it out.
    header = struct.pack(">hhih3s", API_VERSIONS, 99, 7, 3, b"new") + b"\x00"
    connection.send_frame(header + b"\x02a\x02b\x00")
    answer = decode_response(API_VERSIONS, 0, connection.receive_frame(), 7)
    assert answer["error_code"] == "unsupported_version"
    assert ranges(answer)[API_VERSIONS] == (0, 4)
    # And may go on, on the same connection.
    assert connection.call(API_VERSIONS, 4, CLIENT)["error_code"] == "none"


def test_a_nameless_client_software_is_invalid(connection: RawConnection) -> None:
    answer = connection.call(
        API_VERSIONS, 3, {"client_software_name": "-bad-", "client_software_version": "1"}
    )
    assert answer["error_code"] == "invalid_request"


@pytest.mark.parametrize("api_key, version", [(999, 0), (-1, 0), (4, 0), (METADATA, 99), (METADATA, -1)])
def test_unknown_apis_and_versions_end_the_connection(
    api_key: int, version: int, broker: BrokerProcess
) -> None:
    with RawConnection((broker.host, broker.port)) as connection:
        connection.send_frame(struct.pack(">hhih3s", api_key, version, 1, 3, b"odd") + bytes(1_000))
        assert connection.is_closed_by_peer()
    assert broker.answers()


def test_metadata_names_the_broker_and_the_topic(
    connection: RawConnection, topic: str, broker: BrokerProcess
) -> None:
    answer = connection.call(
        METADATA,
        13,
        {
            "topics": [{"topic_id": None, "name": topic}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
    )
    (node,) = answer["brokers"]
    assert (node["host"], node["port"]) == (broker.host, broker.port)
    assert answer["controller_id"] == node["node_id"]
    assert len(answer["cluster_id"]) == 22
    (found,) = answer["topics"]
    assert found["topic_authorized_operations"] == ALL_TOPIC_OPERATIONS
    assert [partition["partition_index"] for partition in found["partitions"]] == [0, 1]
    for partition in found["partitions"]:
        assert partition["leader_id"] == node["node_id"]
        assert partition["replica_nodes"] == partition["isr_nodes"] == [node["node_id"]]
        assert partition["offline_replicas"] == []


def test_metadata_of_absent_and_impossible_topics(connection: RawConnection) -> None:
    absent = unique_name("absent")
    found = topic_metadata(connection, absent)
    assert (found["error_code"], found["partitions"]) == ("unknown_topic_or_partition", [])
    assert found["topic_authorized_operations"] == NOT_ASKED
    assert topic_metadata(connection, "not allowed")["error_code"] == "invalid_topic_exception"
    # Auto-creation is off on this broker, so asking for it changes nothing.
    assert topic_metadata(connection, absent, create=True)["error_code"] == "unknown_topic_or_partition"


def test_metadata_by_topic_id(connection: RawConnection, topic: str) -> None:
    ident = topic_metadata(connection, topic)["topic_id"]

    def ask(wanted: uuid.UUID) -> Plain:
        request = {
            "topics": [{"topic_id": wanted, "name": None}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        found: Plain = connection.call(METADATA, 12, request)["topics"][0]
        return found

    assert ask(ident)["name"] == topic
    unknown = uuid.uuid4()
    answer = ask(unknown)
    assert (answer["error_code"], answer["topic_id"], answer["name"]) == ("unknown_topic_id", unknown, None)


def test_all_topics_none_and_some(connection: RawConnection, topic: str) -> None:
    def names(version: int, topics: list[Plain] | None) -> set[str]:
        return {found["name"] for found in connection.call(METADATA, version, {"topics": topics})["topics"]}

    # Version 0 had no null: an empty list meant all.
    assert topic in names(0, [])
    assert names(1, []) == set()
    assert topic in names(1, None)
    assert names(1, [{"name": topic}]) == {topic}


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_metadata(version: int, connection: RawConnection, topic: str) -> None:
    wanted: Plain = {"name": topic}
    if version >= 10:
        wanted["topic_id"] = None
    request: Plain = {"topics": [wanted]}
    if version >= 4:
        request["allow_auto_topic_creation"] = False
    if version >= 8:
        request["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        request["include_cluster_authorized_operations"] = False
    (found,) = connection.call(METADATA, version, request)["topics"]
    assert (found["error_code"], found["name"], len(found["partitions"])) == ("none", topic, 2)


def test_topic_partitions_come_in_pages(connection: RawConnection, topic: str) -> None:
    absent = unique_name("absent")

    def page(limit: int, cursor: Plain | None, *names: str) -> Plain:
        request = {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": limit,
            "cursor": cursor,
        }
        return connection.call(DESCRIBE_TOPIC_PARTITIONS, 0, request)

    first = page(1, None, topic, absent)
    by_name = {found["name"]: found for found in first["topics"]}
    assert by_name[absent]["error_code"] == "unknown_topic_or_partition"
    assert [part["partition_index"] for part in by_name[topic]["partitions"]] == [0]
    assert first["next_cursor"] == {"topic_name": topic, "partition_index": 1}
    second = page(5, first["next_cursor"], topic)
    assert [part["partition_index"] for part in second["topics"][0]["partitions"]] == [1]
    assert second["next_cursor"] is None


def test_describing_absent_producers_and_deleting_absent_records(
    connection: RawConnection, topic: str
) -> None:
    absent = unique_name("absent")
    request: Plain = {
        "topics": [{"name": absent, "partition_indexes": [0]}, {"name": topic, "partition_indexes": [9]}]
    }
    answer = connection.call(DESCRIBE_PRODUCERS, 0, request)
    errors = [entry["partitions"][0]["error_code"] for entry in answer["topics"]]
    assert errors == ["unknown_topic_or_partition"] * 2
    request = {
        "topics": [
            {"name": absent, "partitions": [{"partition_index": 0, "offset": 1}]},
            {"name": topic, "partitions": [{"partition_index": 0, "offset": -5}]},
        ],
        "timeout": 5_000,
    }
    answer = connection.call(DELETE_RECORDS, 2, request)
    found = {entry["name"]: entry["partitions"][0] for entry in answer["topics"]}
    assert found[absent]["error_code"] == "unknown_topic_or_partition"
    assert (found[topic]["error_code"], found[topic]["low_watermark"]) == ("offset_out_of_range", -1)


def test_deleting_by_unknown_name_and_id(connection: RawConnection) -> None:
    request: Plain = {
        "topics": [
            {"name": unique_name("absent"), "topic_id": None},
            {"name": None, "topic_id": uuid.uuid4()},
        ],
        "timeout": 5_000,
    }
    answer = connection.call(DELETE_TOPICS, 6, request)
    errors = sorted(entry["error_code"] for entry in answer["responses"])
    assert errors == ["unknown_topic_id", "unknown_topic_or_partition"]
