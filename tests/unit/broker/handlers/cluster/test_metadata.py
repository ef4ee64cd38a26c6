"""Metadata and DescribeCluster: what clients find out about topics, and where they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.broker.network.context import Endpoint
from millrace.core.ids import NO_TOPIC_ID
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_cluster import DescribeClusterRequest
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.unit.broker.handlers.broker import Broker

ALL_VERSIONS = range(14)
NOT_ASKED = -(2**31)


def by_name(*names: str, create: bool = False) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


def by_id(topic_id: bytes, name: str | None = None) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name, topic_id=topic_id)], allow_auto_topic_creation=True
    )


def errors(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.fixture
def advertising(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", {"advertised.listeners": "PLAINTEXT://public.test:19092"})
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_topic_is_described_in_every_version(broker: Broker, version: int) -> None:
    topic = broker.create_topic("orders", 3)
    response = broker.ask(by_name("orders"), version)
    (found,) = response.topics
    assert (found.error_code, found.name, found.is_internal) == (ErrorCode.NONE, "orders", False)
    assert found.topic_id == (topic.topic_id if version >= 10 else NO_TOPIC_ID)
    assert [partition.partition_index for partition in found.partitions] == [0, 1, 2]
    for partition in found.partitions:
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert partition.offline_replicas == []
    if version >= 2:
        assert response.cluster_id == broker.metadata.image.cluster_id
    if version >= 1:
        assert response.controller_id == 1
        assert response.brokers[0].rack == "r1"


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_null_asks_for_all_topics_and_version_0_says_it_with_an_empty_list(
    broker: Broker, version: int
) -> None:
    broker.create_topic("a")
    broker.create_topic("b")
    response = broker.ask(MetadataRequest(topics=[] if version == 0 else None), version)
    assert sorted(topic.name for topic in response.topics) == ["a", "b"]
    if version > 0:
        assert broker.ask(MetadataRequest(topics=[]), version).topics == []


def test_clients_are_sent_to_the_address_that_they_dialled(broker: Broker) -> None:
    for host, port in (("localhost", 9092), ("10.0.0.5", 40_000), ("::1", 9092)):
        dialled = Endpoint(host, port, "client.test", 1, "PLAINTEXT")
        for request in (by_name(), MetadataRequest(topics=None)):
            (found,) = broker.ask(request, 12, dialled).brokers
            assert (found.node_id, found.host, found.port) == (1, host, port)


def test_an_advertised_address_counts_more_than_the_dialled_one(advertising: Broker) -> None:
    (found,) = advertising.ask(by_name(), 12).brokers
    assert (found.host, found.port) == ("public.test", 19092)
    (described,) = advertising.ask(DescribeClusterRequest(), 1).brokers
    assert (described.host, described.port) == ("public.test", 19092)


def test_an_unknown_topic_is_created_when_client_and_broker_agree(broker: Broker) -> None:
    assert errors(broker.ask(by_name("new"), 4)) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    response = broker.ask(by_name("new", "other", create=True), 12)
    assert errors(response) == {"new": ErrorCode.NONE, "other": ErrorCode.NONE}
    assert response.topics[0].topic_id == broker.metadata.image.topics["new"].topic_id
    # Clients of old versions have no way to refuse.
    assert errors(broker.ask(by_name("old"), 3)) == {"old": ErrorCode.NONE}


def test_new_topics_take_the_brokers_defaults(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"num.partitions": "4", "default.replication.factor": "2"})
    broker.start()
    try:
        response = broker.ask(by_name("new", create=True), 12)
        assert errors(response) == {"new": ErrorCode.INVALID_REPLICATION_FACTOR}
    finally:
        broker.stop()


def test_no_topic_is_created_where_the_broker_does_not_want_it(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"auto.create.topics.enable": "false"})
    broker.start()
    try:
        response = broker.ask(by_name("new", create=True), 12)
        assert errors(response) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    finally:
        broker.stop()


@pytest.mark.parametrize("name", ["bad name", "", ".", "x" * 250])
def test_a_name_that_no_topic_may_have_is_not_created(broker: Broker, name: str) -> None:
    for create in (True, False):
        response = broker.ask(by_name(name, create=create), 12)
        assert errors(response) == {name: ErrorCode.INVALID_TOPIC_EXCEPTION}


def test_internal_topics_are_not_created_by_asking(broker: Broker) -> None:
    (found,) = broker.ask(by_name("__consumer_offsets", create=True), 12).topics
    assert (found.error_code, found.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
    response = broker.ask(by_name("__cluster_metadata", create=True), 12)
    assert errors(response) == {"__cluster_metadata": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_store_that_does_not_answer_is_told_per_topic(broker: Broker) -> None:
    broker.create_topic("there")
    broker.store.set_available(False)
    response = broker.ask(by_name("there", "new", create=True), 12)
    assert errors(response) == {"there": ErrorCode.NONE, "new": ErrorCode.REQUEST_TIMED_OUT}
    broker.store.set_available(True)


def test_topics_are_found_by_id_from_version_12(broker: Broker) -> None:
    topic = broker.create_topic("orders")
    (found,) = broker.ask(by_id(topic.topic_id), 12).topics
    assert (found.error_code, found.name) == (ErrorCode.NONE, "orders")
    (unknown,) = broker.ask(by_id(b"1" * 16), 13).topics
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (
        ErrorCode.UNKNOWN_TOPIC_ID,
        None,
        b"1" * 16,
    )


def test_an_id_counts_more_than_the_name_beside_it(broker: Broker) -> None:
    # A topic that was deleted and created again must not be taken for the old one.
    broker.create_topic("orders")
    (found,) = broker.ask(by_id(b"1" * 16, "orders"), 12).topics
    assert (found.error_code, found.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_questions_are_refused_before_version_12(broker: Broker, version: int) -> None:
    for request in (by_id(b"1" * 16), by_id(NO_TOPIC_ID)):
        response = broker.ask(request, version)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
        assert response.brokers == []


def test_neither_name_nor_id_is_refused(broker: Broker) -> None:
    response = broker.ask(by_id(NO_TOPIC_ID), 12)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]


def test_a_topic_named_twice_is_answered_once(broker: Broker) -> None:
    broker.create_topic("orders")
    response = broker.ask(by_name("orders", "orders", "none"), 12)
    assert errors(response) == {"orders": 0, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(response.topics) == 2


def test_permitted_operations_are_told_to_those_who_ask(broker: Broker) -> None:
    broker.create_topic("orders")
    request = by_name("orders")
    response = broker.ask(request, 8)
    assert response.topics[0].topic_authorized_operations == NOT_ASKED
    assert response.cluster_authorized_operations == NOT_ASKED
    request.include_topic_authorized_operations = True
    request.include_cluster_authorized_operations = True
    response = broker.ask(request, 8)
    assert response.topics[0].topic_authorized_operations == 3576
    assert response.cluster_authorized_operations == 8096


def test_the_kept_answer_about_all_topics_ends_with_the_next_change(broker: Broker) -> None:
    everything = MetadataRequest(topics=None)
    broker.create_topic("a")
    first = broker.ask(everything, 12)
    assert broker.ask(everything, 12) == first
    assert [topic.name for topic in broker.ask(everything, 1).topics] == ["a"]
    broker.create_topic("b")
    assert sorted(topic.name for topic in broker.ask(everything, 12).topics) == ["a", "b"]


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(broker: Broker, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = broker.ask(request, version)
    assert (response.error_code, response.controller_id) == (ErrorCode.NONE, 1)
    assert response.cluster_id == broker.metadata.image.cluster_id
    assert response.cluster_authorized_operations == 8096
    (found,) = response.brokers
    assert (found.broker_id, found.host, found.port, found.rack) == (1, "broker.test", 9092, "r1")
    assert broker.ask(DescribeClusterRequest(), version).cluster_authorized_operations == NOT_ASKED


def test_a_broker_does_not_speak_for_controllers(broker: Broker) -> None:
    response = broker.ask(DescribeClusterRequest(endpoint_type=2), 1)
    assert (response.error_code, response.brokers) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, [])
    response = broker.ask(DescribeClusterRequest(endpoint_type=5), 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
