"""Committed offsets as every client writes and reads them, and where reading starts without one."""

from __future__ import annotations

import time
from typing import Any

import confluent_kafka
import pytest

from tests.compat.groups.feed import write_numbered
from tests.compat.groups.members import JavaMembers
from tests.compat.groups.offset_clients import (
    AiokafkaOffsets,
    Committed,
    ConfluentOffsets,
    JavaOffsets,
    KafkaPythonOffsets,
    OffsetClient,
)
from tests.harness.process import BrokerProcess
from tests.harness.raw import RawConnection
from tests.harness.topics import create_topic, unique_name

NAMES = ("librdkafka", "kafka-python", "aiokafka", "java")
OFFSET_COMMIT, OFFSET_FETCH = 8, 9


@pytest.fixture(scope="module")
def clients(java_members: JavaMembers) -> dict[str, OffsetClient]:
    every = [ConfluentOffsets(), KafkaPythonOffsets(), AiokafkaOffsets(), JavaOffsets(java_members)]
    return {client.name: client for client in every}


@pytest.mark.parametrize("writer", NAMES)
def test_every_client_reads_what_one_committed(
    broker: BrokerProcess, clients: dict[str, OffsetClient], writer: str
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("committed"))
    write_numbered(broker.bootstrap, topic, 1, 50)
    group = unique_name("committed")
    client = clients[writer]
    assert all(each.committed(broker.bootstrap, group, topic) is None for each in clients.values())
    wanted = Committed(17, f"written by {writer}, grüße ✓", 0 if client.has_epoch else -1)
    client.commit(broker.bootstrap, group, topic, wanted)
    for reader in clients.values():
        found = reader.committed(broker.bootstrap, group, topic)
        assert found is not None, reader.name
        assert found.offset == wanted.offset
        if reader.has_metadata_when_reading:
            # librdkafka sends the zero byte behind the text as well.
            assert found.metadata is not None
            assert found.metadata.rstrip("\0") == wanted.metadata, reader.name
        if reader.has_epoch:
            assert found.epoch == wanted.epoch, reader.name
    # Going back is a commit like any other: whoever may commit may also repeat.
    client.commit(broker.bootstrap, group, topic, Committed(3, ""))
    found = clients["librdkafka"].committed(broker.bootstrap, group, topic)
    assert found is not None
    assert found.offset == 3


@pytest.mark.parametrize("writer", ["librdkafka", "kafka-python", "java"])
def test_asynchronous_commits_arrive(
    broker: BrokerProcess, clients: dict[str, OffsetClient], writer: str
) -> None:
    topic, group = create_topic(broker.bootstrap, unique_name("async")), unique_name("async")
    write_numbered(broker.bootstrap, topic, 1, 10)
    clients[writer].commit(broker.bootstrap, group, topic, Committed(9, "later"), is_async=True)
    found = clients["java"].committed(broker.bootstrap, group, topic)
    assert found is not None
    assert found.metadata is not None
    assert (found.offset, found.metadata.rstrip("\0")) == (9, "later")


@pytest.mark.parametrize("name", NAMES)
def test_reading_starts_where_the_reset_policy_says(
    broker: BrokerProcess, clients: dict[str, OffsetClient], name: str
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("reset"))
    write_numbered(broker.bootstrap, topic, 1, 12)

    def first(reset: str, committed: int | None = None) -> int | None:
        group = unique_name("reset")
        if committed is not None:
            clients["librdkafka"].commit(broker.bootstrap, group, topic, Committed(committed))
        return clients[name].first_offset(broker.bootstrap, group, topic, reset)

    assert first("earliest") == 0
    assert first("latest") == 12
    assert first("none") is None
    assert first("none", committed=5) == 5
    assert first("latest", committed=5) == 5


def test_java_starts_by_duration(broker: BrokerProcess, clients: dict[str, OffsetClient]) -> None:
    topic = create_topic(broker.bootstrap, unique_name("duration"))
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = int(time.time() * 1000)
    for age_s in (7_200, 3_600, 1_800, 60):
        producer.produce(topic, value=b"aged", timestamp=now_ms - age_s * 1000)
    assert producer.flush(20) == 0

    def first(reset: str) -> int | None:
        return clients["java"].first_offset(broker.bootstrap, unique_name("duration"), topic, reset)

    assert first("by_duration:PT45M") == 2
    assert first("by_duration:PT90M") == 1
    assert first("by_duration:P10D") == 0


def test_a_member_can_seek_by_offset_and_by_time(broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("seek"))
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce(topic, value=str(number).encode(), timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(20) == 0
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": unique_name("seek"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    assert _next_value(consumer) == b"0"
    consumer.seek(confluent_kafka.TopicPartition(topic, 0, 7))
    assert _next_value(consumer) == b"7"
    (found,) = consumer.offsets_for_times(
        [confluent_kafka.TopicPartition(topic, 0, 1_700_000_003_500)], timeout=10
    )
    assert found.offset == 4
    consumer.seek(found)
    assert _next_value(consumer) == b"4"
    consumer.close()


def test_auto_commit_stores_the_position_on_leaving(
    broker: BrokerProcess, clients: dict[str, OffsetClient]
) -> None:
    topic, group = create_topic(broker.bootstrap, unique_name("auto")), unique_name("auto")
    write_numbered(broker.bootstrap, topic, 1, 5)
    for protocol in ("classic", "consumer"):
        consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": f"{group}-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        for _ in range(3):
            _next_value(consumer)
        consumer.close()
        found = clients["librdkafka"].committed(broker.bootstrap, f"{group}-{protocol}", topic)
        assert found is not None
        assert found.offset == 3


def _next_value(consumer: Any) -> bytes:
    message = consumer.poll(20)
    assert message is not None
    assert message.error() is None, message.error()
    value: bytes = message.value()
    return value


def test_offsets_are_refused_where_they_make_no_sense(broker: BrokerProcess) -> None:
    """The raw answers, which clients hide behind retries."""
    topic, group = create_topic(broker.bootstrap, unique_name("refused")), unique_name("refused")

    def commit(connection: RawConnection, name: str, metadata: str, member: str = "", epoch: int = -1) -> str:
        partition = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        request = {
            "group_id": group,
            "generation_id_or_member_epoch": epoch,
            "member_id": member,
            "group_instance_id": None,
            "topics": [{"name": name, "partitions": [partition]}],
        }
        answer = connection.call(OFFSET_COMMIT, 9, request)
        code: str = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    with RawConnection((broker.host, broker.port)) as connection:
        deadline = time.monotonic() + 60
        while commit(connection, topic, "fits") != "none":
            assert time.monotonic() < deadline, "the coordinator never answers"
            time.sleep(0.1)
        assert commit(connection, topic, "x" * 4096) == "none"
        assert commit(connection, topic, "x" * 4097) == "offset_metadata_too_large"
        assert commit(connection, f"{topic}-absent", "") == "unknown_topic_or_partition"
        assert commit(connection, topic, "", member="stranger", epoch=3) in (
            "unknown_member_id",
            "illegal_generation",
        )
