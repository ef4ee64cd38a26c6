"""Roles and tenants with Kafka's own tools and clients: permissions for `Role:` principals count for members,
and a tenant's administrator sets those of its names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millrace.client.blocking_connection import BlockingConnection
from millrace.client.security import SecurityOptions
from millrace.security.config_resources import ROLE_TYPE, TENANT_TYPE
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.compat.guarded import Guarded, guarded_broker, password_of
from tests.harness.java import JavaHost
from tests.harness.process import eventually
from tests.harness.topics import create_topic, unique_name

pytestmark = pytest.mark.millrace_only

ACLS = "org.apache.kafka.tools.AclCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
SET, APPEND, SUBTRACT = 0, 2, 3


@pytest.fixture(scope="module")
def guarded(against: str, java: JavaHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(against, java, tmp_path_factory.mktemp("roles")) as broker:
        yield broker


def alter(
    guarded: Guarded, kind: int, name: str, *changes: tuple[str, int, str], who: str | None = None
) -> int:
    """Change a role or a tenant as a user, or as whoever administers the cluster."""
    security, port = SecurityOptions(), guarded.process.port
    if who is not None:
        security = SecurityOptions(
            protocol="SASL_PLAINTEXT",
            mechanism="SCRAM-SHA-256",
            username=who,
            password=password_of(who),
        )
        port = guarded.login_port
    connection = BlockingConnection("127.0.0.1", port, client_id="test", timeout_s=10)
    try:
        connection.open_with("test", security)
        configs = [
            AlterableConfig(name=setting, config_operation=operation, value=value)
            for setting, operation, value in changes
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (result,) = connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        return int(result.error_code)
    finally:
        connection.close()


def refusal(guarded: Guarded, user: str, topic: str) -> str | None:
    """Why a user does not get to see a topic."""
    seen = Producer(guarded.client(user)).list_topics(topic, timeout=10).topics[topic]
    return None if seen.error is None else seen.error.name()


def read(guarded: Guarded, user: str, topic: str) -> bytes | str | None:
    """What a user reads from the beginning of a topic, or the name of the error."""
    refused = refusal(guarded, user, topic)
    if refused is not None:
        return refused
    consumer = Consumer({**guarded.client(user), "group.id": user, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(100):
            message = consumer.poll(0.1)
            # The library looks for the group, too, although it is given its partitions.
            if message is not None and message.error() is None:
                return message.value()
        return None
    finally:
        consumer.close()


def test_members_of_a_role_may_what_the_role_may(guarded: Guarded) -> None:
    topic = create_topic(guarded.process.bootstrap, unique_name("role"))
    producer = Producer({"bootstrap.servers": guarded.process.bootstrap})
    producer.produce(topic, b"value")
    assert producer.flush(10) == 0
    words: Sequence[str] = ("--add", "--allow-principal", "Role:readers", "--operation", "Read", "--topic")
    assert guarded.tool(ACLS, None, *words, topic)["status"] == 0
    assert read(guarded, "alice", topic) == "TOPIC_AUTHORIZATION_FAILED"
    assert alter(guarded, ROLE_TYPE, "readers", ("members", SET, "User:alice")) == ErrorCode.NONE
    assert read(guarded, "alice", topic) == b"value"
    assert read(guarded, "bob", topic) == "TOPIC_AUTHORIZATION_FAILED"
    assert alter(guarded, ROLE_TYPE, "readers", ("members", APPEND, "User:bob")) == ErrorCode.NONE
    assert read(guarded, "bob", topic) == b"value"
    assert alter(guarded, ROLE_TYPE, "readers", ("members", SUBTRACT, "User:alice")) == ErrorCode.NONE
    assert read(guarded, "alice", topic) == "TOPIC_AUTHORIZATION_FAILED"


def test_an_administrator_of_a_tenant_sets_permissions_of_its_names_alone(guarded: Guarded) -> None:
    changes = (("prefix", SET, "team."), ("administrators", SET, "User:alice"))
    assert alter(guarded, TENANT_TYPE, "team", *changes) == ErrorCode.NONE
    made = guarded.tool(TOPICS, "alice", "--create", "--topic", "team.orders", "--partitions", "1")
    assert made["status"] == 0, made
    other = create_topic(guarded.process.bootstrap, unique_name("other"))
    words = ("--add", "--allow-principal", "User:carol", "--operation", "Read", "--topic")
    allowed = guarded.tool(ACLS, "alice", *words, "team.orders")
    assert allowed["status"] == 0, allowed
    refused = guarded.tool(ACLS, "alice", *words, other)
    assert "ClusterAuthorizationException" in refused["stdout"] + refused["stderr"]
    listed = guarded.tool(ACLS, "alice", "--list")
    assert listed["status"] == 0, listed
    assert "name=team.orders" in listed["stdout"]
    assert "Role:readers" not in listed["stdout"]
    topics = guarded.tool(TOPICS, "alice", "--list")["stdout"].split()
    assert topics == ["team.orders"]
    eventually(lambda: guarded.tool(TOPICS, "carol", "--list")["stdout"].split() == ["team.orders"])
    limit = ("partitions.max", SET, "100")
    assert alter(guarded, TENANT_TYPE, "team", limit, who="alice") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    member = ("members", APPEND, "User:bob")
    assert alter(guarded, TENANT_TYPE, "team", member, who="alice") == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    own = ("members", APPEND, "User:team.dave")
    assert alter(guarded, TENANT_TYPE, "team", own, who="alice") == ErrorCode.NONE
    assert alter(guarded, TENANT_TYPE, "team", member) == ErrorCode.NONE
    produced: list[Any] = []
    producer = Producer(guarded.client("bob"))
    producer.produce("team.orders", b"value", on_delivery=lambda error, _: produced.append(error))
    producer.flush(10)
    assert produced == [None]
    assert refusal(guarded, "bob", other) == "TOPIC_AUTHORIZATION_FAILED"
