"""Brokers that show each other who they are: they replicate, lose a leader and go on; strangers get
nowhere."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.client.blocking_connection import BlockingConnection
from millrace.client.errors import ConnectionClosed, ConnectionFailed
from millrace.client.security import read_security
from millrace.client.tls import TlsOptions
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from millrace.wire.messages.metadata import MetadataRequest
from millrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.harness.certificates import Authority
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.secured import (
    STANDARD_AUTHORIZER,
    SecuredMillrace,
    certificate_settings,
    first_users_file,
    scram_client,
    two_listeners,
)
from tests.harness.topics import unique_name
from tests.harness.writer import NumberedWriter, number_in

pytestmark = pytest.mark.slow

USERS = {"admin": "admin-geheim", "broker": "broker-geheim", "mallory": "mallory-geheim"}
LOGIN = 'ScramLoginModule required username="broker" password="broker-geheim";'


@contextmanager
def running(directory: Path, inside: Mapping[str, str], *, protocol: str, between: str) -> Iterator[Cluster]:
    authority = Authority(directory / "authority")
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin;User:broker;User:CN=broker",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "metadata.bootstrap.credentials.file": str(first_users_file(directory, USERS)),
        **certificate_settings(authority, "broker"),
        **inside,
    }
    client = scram_client(protocol, "admin", "admin-geheim", authority if protocol.endswith("SSL") else None)
    cluster = Cluster(directory, settings, client=client, process=SecuredMillrace)
    for broker in cluster.brokers.values():
        broker.settings |= two_listeners(broker, clients=protocol, inside=between)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def read_all(cluster: Cluster, topic: str, count: int) -> list[int]:
    consumer: Any = confluent_kafka.Consumer({
        "bootstrap.servers": cluster.bootstrap,
        "group.id": unique_name("reader"),
        "auto.offset.reset": "earliest",
        "log_level": 0,
        **cluster.client,
    })  # fmt: skip
    try:
        consumer.subscribe([topic])
        found: list[int] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.5):
                assert message.error() is None, message.error()
                found.append(number_in(message.value(), topic, 0))
        return found
    finally:
        consumer.close()


def lose_the_leader(cluster: Cluster) -> None:
    """All that was acknowledged is read, whoever leads; and the one that was lost catches up."""
    topic = unique_name("secured")
    cluster.create_topic(topic)
    with NumberedWriter(cluster.bootstrap, topic, config=cluster.client) as writer:
        eventually(lambda: len(writer.acknowledged) > 200, DEADLINE_S)
        leader = cluster.partitions(topic)[0].leader
        cluster.brokers[leader].kill()
        before = len(writer.acknowledged)
        eventually(lambda: len(writer.acknowledged) > before + 200, DEADLINE_S)
        cluster.brokers[leader].start()
        eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
    assert not writer.failures, writer.failures[:3]
    assert read_all(cluster, topic, writer.written) == list(range(writer.written))
    eventually(lambda: cluster.have_same_log(topic, 0), DEADLINE_S)


@pytest.fixture(scope="module")
def by_scram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Sessions between brokers end every two seconds, so that they log in again and again."""
    inside = {
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.inside.scram-sha-512.sasl.jaas.config": LOGIN,
        "listener.name.inside.connections.max.reauth.ms": "2000",
    }
    directory = tmp_path_factory.mktemp("by-scram")
    with running(directory, inside, protocol="SASL_SSL", between="SASL_SSL") as cluster:
        yield cluster


def test_brokers_with_a_login_by_scram_lose_a_leader_and_go_on(by_scram: Cluster) -> None:
    lose_the_leader(by_scram)
    for broker in by_scram.brokers.values():
        assert "cannot be talked to" not in broker.output_path.read_text()


def inside_port(broker: MillraceProcess) -> int:
    return int(broker.settings["listeners"].rpartition(":")[2])


@pytest.mark.parametrize("api_key, version, message", [
    (ApiKey.METADATA, 12, MetadataRequest(topics=None)),
    (ApiKey.FETCH, 17, FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=1))),
    (ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest()),
])  # fmt: skip
def test_before_a_login_nothing_is_served_between_brokers(
    by_scram: Cluster, api_key: int, version: int, message: object
) -> None:
    """S12: the connection is closed without an answer."""
    security = read_security(by_scram.client)
    connection = BlockingConnection(
        "127.0.0.1",
        inside_port(by_scram.brokers[1]),
        client_id="stranger",
        timeout_s=10,
        tls=security.tls_context(),
    )
    with pytest.raises(ConnectionClosed):
        connection.ask(api_key, version, message)
    connection.close()


def test_a_user_who_is_no_broker_does_nothing_that_brokers_do(by_scram: Cluster) -> None:
    """S12, S13: who comes in by the brokers' listener is still asked what they may do."""
    topic = unique_name("secured")
    by_scram.create_topic(topic)
    before = by_scram.partitions(topic)
    leader = by_scram.brokers[before[0].leader]
    login = {"sasl.username": "mallory", "sasl.password": USERS["mallory"]}
    security = read_security(by_scram.client | login)
    connection = BlockingConnection(
        "127.0.0.1", inside_port(leader), client_id="m", timeout_s=10, tls=security.tls_context()
    )
    connection.open_with("mallory", security)
    place = WritableTxnMarkerTopic(name=topic, partition_indexes=[0])
    marker = WritableTxnMarker(producer_id=1, transaction_result=True, topics=[place])
    answer = connection.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=[marker]))
    codes = [each.error_code for one in answer.markers[0].topics for each in one.partitions]
    assert codes == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    (found,) = by_scram.admin.describe_topics(confluent_kafka.TopicCollection([topic])).values()
    topic_id = base64.urlsafe_b64decode(f"{found.result(30).topic_id}==")
    wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=0, fetch_offset=0)])
    fetch = FetchRequest(
        replica_state=ReplicaState(replica_id=2, replica_epoch=1), max_bytes=1 << 20, topics=[wanted]
    )
    answer = connection.ask(ApiKey.FETCH, 17, fetch)
    codes = [each.error_code for one in answer.responses for each in one.partitions]
    assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED], answer
    connection.close()
    assert by_scram.partitions(topic) == before


def test_brokers_with_certificates_lose_a_leader_and_go_on(tmp_path: Path) -> None:
    """No password anywhere between them: their principal is the name in the certificate."""
    inside = {"listener.name.inside.ssl.client.auth": "required"}
    with running(tmp_path, inside, protocol="SASL_SSL", between="SSL") as cluster:
        lose_the_leader(cluster)
        other = Authority(tmp_path / "other", "Somebody Else")
        stranger = other.identity("broker")
        tls = TlsOptions(
            ca_file=cluster.client["ssl.ca.location"], certificate_file=str(stranger.both_file)
        ).context()
        # In TLS 1.3 a client learns of the refusal when it asks for something.
        connection = BlockingConnection(
            "127.0.0.1", inside_port(cluster.brokers[1]), client_id="s", timeout_s=10, tls=tls
        )
        try:
            with pytest.raises(ConnectionFailed):
                connection.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        finally:
            connection.close()
