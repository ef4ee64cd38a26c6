"""CreateTopics, DeleteTopics and CreatePartitions: every topic has its own answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.core.ids import NO_TOPIC_ID
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.unit.broker.handlers.broker import Broker

DYNAMIC_TOPIC, DEFAULT = 1, 5


def new(
    name: str = "orders",
    partitions: int = 1,
    replicas: int = 1,
    *,
    configs: dict[str, str | None] | None = None,
    by_hand: list[tuple[int, list[int]]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1 if by_hand else partitions,
        replication_factor=-1 if by_hand else replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in by_hand or ()
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def create(
    broker: Broker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=5000, validate_only=validate_only)
    results: list[CreatableTopicResult] = broker.ask(request, version).topics
    return results


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(broker: Broker, version: int) -> None:
    (result,) = create(broker, new(partitions=2, configs={"retention.ms": "1000"}), version=version)
    topic = broker.metadata.image.topics["orders"]
    assert (result.name, result.error_code, result.error_message) == ("orders", ErrorCode.NONE, None)
    assert result.topic_id == (topic.topic_id if version >= 7 else NO_TOPIC_ID)
    assert len(topic.partitions) == 2
    assert broker.log_config("orders").retention_ms == 1000
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        assert result.configs is not None
        configs = {config.name: config for config in result.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == (
            "1000",
            DYNAMIC_TOPIC,
        )
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
            "delete",
            DEFAULT,
        )
        assert not any(config.read_only or config.is_sensitive for config in result.configs)


@pytest.mark.parametrize("version", [2, 4, 7])
def test_minus_one_takes_the_brokers_defaults(tmp_path: Path, version: int) -> None:
    broker = Broker(tmp_path, {"num.partitions": "3"})
    broker.start()
    try:
        (result,) = create(broker, new(partitions=-1, replicas=-1), version=version)
        assert result.error_code == ErrorCode.NONE
        assert len(broker.metadata.image.topics["orders"].partitions) == 3
    finally:
        broker.stop()


def test_a_rehearsal_tells_the_outcome_and_changes_nothing(broker: Broker) -> None:
    (result,) = create(broker, new(partitions=2), validate_only=True)
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)
    assert not broker.metadata.image.topics
    broker.create_topic("orders")
    (result,) = create(broker, new(), validate_only=True)
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


# What Apache Kafka 4.3.1 answers to the same request.
@pytest.mark.parametrize(
    "topic, code",
    [
        (new(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (new(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (new(replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new(replicas=3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new("the_re"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (new(configs={"retention.ms": "abc"}), ErrorCode.INVALID_CONFIG),
        (new(configs={"nope": "1"}), ErrorCode.INVALID_CONFIG),
        (new(configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (new(by_hand=[(0, [1]), (2, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(by_hand=[(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(by_hand=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(by_hand=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(by_hand=[(0, [1]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            CreatableTopic(
                name="m",
                num_partitions=1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_what_cannot_be_created_is_refused_as_kafka_does(
    broker: Broker, topic: CreatableTopic, code: ErrorCode
) -> None:
    broker.create_topic("there")
    broker.create_topic("the.re")
    refused, created = create(broker, topic, new("fine"))
    assert (refused.name, refused.error_code) == (topic.name, code)
    assert refused.error_message
    assert (refused.num_partitions, refused.replication_factor, refused.configs) == (-1, -1, [])
    assert created.error_code == ErrorCode.NONE


def test_replicas_can_be_placed_by_hand(broker: Broker) -> None:
    (result,) = create(broker, new(by_hand=[(1, [1]), (0, [1])]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)


def test_a_topic_named_twice_in_a_request_is_not_created(broker: Broker) -> None:
    results = {result.name: result for result in create(broker, new("d"), new("d"), new("e"))}
    assert results["d"].error_code == ErrorCode.INVALID_REQUEST
    assert results["e"].error_code == ErrorCode.NONE
    assert list(broker.metadata.image.topics) == ["e"]


def test_a_store_that_does_not_answer_fails_every_topic(broker: Broker) -> None:
    broker.store.set_available(False)
    codes = [result.error_code for result in create(broker, new("a"), new("b"))]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2
    broker.store.set_available(True)


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name_in_every_version(broker: Broker, version: int) -> None:
    topic = broker.create_topic("orders", 2)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name="orders"), DeleteTopicState(name="none")],
        topic_names=["orders", "none"],
        timeout_ms=5000,
    )
    results = {result.name: result for result in broker.ask(request, version).responses}
    assert results["orders"].error_code == ErrorCode.NONE
    assert results["orders"].topic_id == (topic.topic_id if version >= 6 else NO_TOPIC_ID)
    assert results["none"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bool(results["none"].error_message) == (version >= 5)
    assert not broker.metadata.image.topics
    assert broker.services.partitions.find("orders", 0) is None


def test_topics_are_deleted_by_id(broker: Broker) -> None:
    topic = broker.create_topic("orders")
    other = broker.create_topic("others")
    wanted = [DeleteTopicState(topic_id=topic.topic_id), DeleteTopicState(topic_id=b"2" * 16)]
    deleted, unknown = broker.ask(DeleteTopicsRequest(topics=wanted), 6).responses
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("orders", topic.topic_id, 0)
    assert (unknown.name, unknown.topic_id) == (None, b"2" * 16)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert list(broker.metadata.image.topics) == [other.name]


@pytest.mark.parametrize(
    "wanted",
    [
        [DeleteTopicState(name="orders", topic_id=b"2" * 16)],
        [DeleteTopicState()],
        [DeleteTopicState(name="orders"), DeleteTopicState(name="orders")],
        [DeleteTopicState(topic_id=b"2" * 16), DeleteTopicState(topic_id=b"2" * 16)],
    ],
)
def test_contradictions_delete_nothing(broker: Broker, wanted: list[DeleteTopicState]) -> None:
    broker.create_topic("orders")
    results = broker.ask(DeleteTopicsRequest(topics=wanted), 6).responses
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST]
    assert "orders" in broker.metadata.image.topics


def test_where_deletion_is_switched_off_old_clients_get_an_error_that_they_know(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"delete.topic.enable": "false"})
    broker.start()
    try:
        broker.create_topic("orders")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")], topic_names=["orders"])
        for version, code in ((1, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)):
            (result,) = broker.ask(request, version).responses
            assert result.error_code == code
    finally:
        broker.stop()


def more(count: int, name: str = "orders", by_hand: list[list[int]] | None = None) -> CreatePartitionsTopic:
    assignments = None if by_hand is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in by_hand]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_version(broker: Broker, version: int) -> None:
    broker.create_topic("orders", 2)
    rehearsal = CreatePartitionsRequest(topics=[more(5)], validate_only=True)
    assert broker.ask(rehearsal, version).results[0].error_code == ErrorCode.NONE
    (result,) = broker.ask(CreatePartitionsRequest(topics=[more(3, by_hand=[[1]])]), version).results
    assert (result.name, result.error_code, result.error_message) == ("orders", ErrorCode.NONE, None)
    assert len(broker.metadata.image.topics["orders"].partitions) == 3
    assert broker.services.partitions.find("orders", 2) is not None


@pytest.mark.parametrize(
    "topics, code",
    [
        ([more(2)], ErrorCode.INVALID_PARTITIONS),
        ([more(1)], ErrorCode.INVALID_PARTITIONS),
        ([more(0)], ErrorCode.INVALID_PARTITIONS),
        ([more(3, "none")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([more(3), more(4)], ErrorCode.INVALID_REQUEST),
        ([more(4, by_hand=[[1]])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([more(3, by_hand=[[9]])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([more(3, by_hand=[[]])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([more(3, by_hand=[])], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_cannot_be_added_are_refused_as_kafka_does(
    broker: Broker, topics: list[CreatePartitionsTopic], code: ErrorCode
) -> None:
    broker.create_topic("orders", 2)
    (result,) = broker.ask(CreatePartitionsRequest(topics=topics), 3).results
    assert (result.error_code, bool(result.error_message)) == (code, True)
    assert len(broker.metadata.image.topics["orders"].partitions) == 2


def test_nobody_creates_the_topic_of_the_audit_before_the_broker_does(broker: Broker) -> None:
    """Or its records are kept for as long as whoever was first wanted."""
    topic = CreatableTopic(name="__audit", num_partitions=1, replication_factor=1)
    (result,) = broker.ask(CreateTopicsRequest(topics=[topic]), 7).topics
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert "created by brokers" in result.error_message
    assert "__audit" not in broker.metadata.image.topics
