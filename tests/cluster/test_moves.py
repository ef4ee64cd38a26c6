"""Replicas on the move: held to a rate, onto a new broker by themselves, off a broker that is to go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import ConfigResource, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.harness.java import JavaHost
from tests.harness.millrace import MillraceProcess, run_millrace
from tests.harness.process import eventually, throughout
from tests.harness.topics import unique_name

pytestmark = pytest.mark.slow

THROTTLES = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
SETTINGS = {
    "auto.rebalance.new.brokers": "true",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
}
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def moving_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One of its own: a broker joins and leaves."""
    cluster = Cluster(tmp_path_factory.mktemp("moving"), SETTINGS)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def command(cluster: Cluster, *words: str, status: int = 0, group: str = "reassign") -> str:
    address = ("--bootstrap-server", cluster.brokers[1].bootstrap)
    done = run_millrace(group, *words, *address, timeout_s=DEADLINE_S)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def create(cluster: Cluster, replicas: list[list[int]]) -> str:
    name = unique_name("moved")
    topic = NewTopic(name, num_partitions=len(replicas), replica_assignment=replicas)
    cluster.admin.create_topics([topic])[name].result(60)
    return name


def write(cluster: Cluster, topic: str, size_bytes: int, partition: int = 0) -> None:
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 100_000, "log_level": 0}
    )
    for _ in range(size_bytes // 10_000):
        producer.produce(topic, bytes(10_000), partition=partition)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def plan_file(tmp_path: Path, topic: str, replicas: list[list[int]]) -> str:
    path = tmp_path / f"{topic}.json"
    partitions = [
        {"topic": topic, "partition": number, "replicas": nodes} for number, nodes in enumerate(replicas)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def settings_of(cluster: Cluster, kind: Any, name: str) -> dict[str, str]:
    """What is set for it alone."""
    resource = ConfigResource(kind, name)
    found = cluster.admin.describe_configs([resource])[resource].result(30)
    return {
        key: entry.value
        for key, entry in found.items()
        if not entry.is_default and key in (*THROTTLES, *RATES) and entry.source in (1, 2)
    }


def topic_settings(cluster: Cluster, topic: str) -> dict[str, str]:
    return settings_of(cluster, ConfigResource.Type.TOPIC, topic)


def broker_settings(cluster: Cluster, node_id: int) -> dict[str, str]:
    return settings_of(cluster, ConfigResource.Type.BROKER, str(node_id))


def size_on(broker: MillraceProcess, topic: str, partition: int = 0) -> int:
    directory = broker.data_dir / f"{topic}-{partition}"
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def throttle_metrics(broker: MillraceProcess, throttle: str) -> dict[str, float]:
    _, page = broker.http("/metrics")
    return {
        sample.name.removeprefix("millrace_replication_").removeprefix("throttle_"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("throttle") == throttle
    }


def test_a_throttled_move_keeps_its_rate_and_leaves_no_throttle(
    moving_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = moving_cluster
    topic = create(cluster, [[1]])
    write(cluster, topic, 12 * MEGABYTE)
    plan = plan_file(tmp_path, topic, [[2]])
    began = time.monotonic()
    said = command(cluster, "execute", plan, "--throttle", "1MB")
    assert "takes" in said, said
    assert topic_settings(cluster, topic) == dict(zip(THROTTLES, ("0:1", "0:2"), strict=True))
    assert broker_settings(cluster, 1) == dict.fromkeys(RATES, str(MEGABYTE))
    eventually(lambda: size_on(cluster.brokers[2], topic) > MEGABYTE, DEADLINE_S)
    # Producers are not held back: nobody waits for a replica that is not in sync.
    write(cluster, topic, 10_000)
    eventually(lambda: size_on(cluster.brokers[2], topic) > 2.5 * MEGABYTE, DEADLINE_S)
    size, elapsed_s = size_on(cluster.brokers[2], topic), time.monotonic() - began
    # What was saved up, what came since, and a batch or two.
    assert size <= (elapsed_s + 1.5) * MEGABYTE, (size, elapsed_s)
    assert "moving" in command(cluster, "verify", plan, status=1)
    assert topic_settings(cluster, topic), "it is still needed"
    for node_id, throttle in ((1, "leader"), (2, "follower")):
        measured = throttle_metrics(cluster.brokers[node_id], throttle)
        assert measured["rate_bytes"] == MEGABYTE
        assert measured["throttled_bytes_total"] > MEGABYTE
    # One of both waits for the other's quota; which one, is a matter of chance.
    assert any(
        throttle_metrics(cluster.brokers[node_id], throttle)["wait_seconds_total"] > 0.5
        for node_id, throttle in ((1, "leader"), (2, "follower"))
    )

    command(cluster, "execute", plan, "--throttle", "500MB", "--wait")
    assert topic_settings(cluster, topic) == {}
    assert broker_settings(cluster, 1) == broker_settings(cluster, 2) == {}
    eventually(lambda: "rate_bytes" not in throttle_metrics(cluster.brokers[2], "follower"), DEADLINE_S)
    assert "done" in command(cluster, "verify", plan)
    assert cluster.partitions(topic)[0].isr == (2,)


def test_a_cancelled_move_leaves_no_throttle(moving_cluster: Cluster, tmp_path: Path) -> None:
    cluster = moving_cluster
    topic = create(cluster, [[1], [2]])
    write(cluster, topic, 3 * MEGABYTE)
    plan = plan_file(tmp_path, topic, [[3], [2]])
    command(cluster, "execute", plan, "--throttle", "100KB")
    assert topic_settings(cluster, topic) == dict(zip(THROTTLES, ("0:1", "0:3"), strict=True))
    assert "1 moves are cancelled" in command(cluster, "cancel", plan)
    assert topic_settings(cluster, topic) == {}
    assert broker_settings(cluster, 3) == {}
    assert cluster.partitions(topic)[0].isr == (1,)


def test_kafkas_own_tool_moves_with_a_throttle(
    moving_cluster: Cluster, tmp_path: Path, java: JavaHost
) -> None:
    cluster = moving_cluster
    topic = create(cluster, [[3, 1]])
    write(cluster, topic, 4 * MEGABYTE)
    plan = plan_file(tmp_path, topic, [[2, 3]])

    def tool(*words: str) -> str:
        given = ["--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", plan, *words]
        answer = java.tool(REASSIGN, given)
        assert answer["status"] == 0, answer
        return str(answer["stdout"])

    assert "Successfully started partition reassignment" in tool("--execute", "--throttle", "1000000")
    assert topic_settings(cluster, topic) == dict(zip(THROTTLES, ("0:1,0:3", "0:2"), strict=True))
    assert "is still in progress" in tool("--verify")
    changed = tool("--execute", "--additional", "--throttle", "100000000")
    assert "throttle" in changed.lower()
    eventually(lambda: cluster.partitions(topic)[0].isr == (2, 3), DEADLINE_S)
    assert "is completed" in tool("--verify")
    assert topic_settings(cluster, topic) == {}
    assert all(broker_settings(cluster, node_id) == {} for node_id in (1, 2, 3))


def replica_count(cluster: Cluster, node_id: int) -> int:
    topics = cluster.admin.list_topics(timeout=60).topics.values()
    return sum(node_id in part.replicas for topic in topics for part in topic.partitions.values())


def moving_count(cluster: Cluster) -> int:
    topics = cluster.admin.list_topics(timeout=60).topics.values()
    return sum(len(part.replicas) > 2 for topic in topics for part in topic.partitions.values())


def test_a_new_broker_is_filled_by_itself_and_a_drained_one_stays_empty(
    moving_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = moving_cluster
    topic = create(cluster, [[1 + number % 3, 1 + (number + 1) % 3] for number in range(12)])
    write(cluster, topic, MEGABYTE)
    for name in list(cluster.admin.list_topics(timeout=60).topics):
        if name not in (topic, "__consumer_offsets", "__transaction_state"):
            cluster.admin.delete_topics([name])[name].result(30)
    first = cluster.brokers[1]
    fourth = MillraceProcess(
        first.directory.parent / "broker-4", {**first.settings, "node.id": "4", "broker.rack": "rack-4"}
    )
    cluster.brokers[4] = fourth
    fourth.start()
    eventually(lambda: replica_count(cluster, 4) == 6 and not moving_count(cluster), DEADLINE_S)
    assert size_on(fourth, topic) > 0 or replica_count(cluster, 4) == 6
    assert "0 partitions change" in command(cluster, "fill", "4")

    plan = str(tmp_path / "drain.json")
    command(cluster, "generate", "--drain", "4", "--output", plan)
    command(cluster, "execute", plan, "--throttle", "100MB", "--wait")
    assert replica_count(cluster, 4) == 0
    assert topic_settings(cluster, topic) == {}
    assert fourth.stop() == 0
    fourth.start()
    # It is no new broker, and was emptied on purpose.
    throughout(lambda: replica_count(cluster, 4) == 0, 1.0)

    said = command(cluster, "fill", "4", "--execute", "--throttle", "100MB", "--wait")
    assert "6 partitions are to move" in said
    assert replica_count(cluster, 4) == 6

    said = command(cluster, "unregister", "4", group="broker", status=1)
    assert f"broker 4 runs at {fourth.host}:{fourth.port} and holds 6 replicas" in said
    assert fourth.stop() == 0
    said = command(cluster, "unregister", "4", group="broker", status=1)
    assert "broker 4 still holds 6 replicas: drain it (`millrace reassign generate --drain 4" in said
    command(cluster, "generate", "--drain", "4", "--output", plan)
    command(cluster, "execute", plan, "--wait")
    assert "unregistered broker 4" in command(cluster, "unregister", "4", group="broker")
    said = command(cluster, "unregister", "4", group="broker", status=1)
    assert "BROKER_ID_NOT_REGISTERED" in said
    del cluster.brokers[4]
    write(cluster, topic, MEGABYTE)
