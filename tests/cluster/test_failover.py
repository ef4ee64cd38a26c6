"""A cluster that loses brokers: what was acknowledged is there, in order and once, and everything goes on."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from millrace.core.ids import TopicPartition
from millrace.log.disk.volume import DiskVolume
from millrace.log.segments.checkpoints import LOG_START_OFFSETS, read_offsets
from millrace.wire.records import Record, build_batch
from tests.cluster.cluster import DEADLINE_S, Cluster
from tests.harness.process import BrokerProcess, eventually
from tests.harness.protocol import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    fetch_partition,
    fetch_request,
    produce,
    produce_request,
    topic_id,
)
from tests.harness.raw import FETCH, PRODUCE, RawConnection
from tests.harness.topics import unique_name
from tests.harness.writer import NumberedWriter, number_in, numbered

pytestmark = pytest.mark.slow

NOW_MS = 1_700_000_000_000


def read_all(bootstrap: str, topic: str, partition: int) -> dict[int, int]:
    """Number by offset of everything in a partition."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique_name("reader"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        place = confluent_kafka.TopicPartition(topic, partition)
        end = 0
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                _, end = consumer.get_watermark_offsets(place, timeout=10)
                break
            except confluent_kafka.KafkaException:
                time.sleep(0.1)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        found: dict[int, int] = {}
        # Not the last record's offset: markers of transactions have offsets, too.
        while consumer.position([place])[0].offset < end and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.5):
                if message.error() is None:
                    found[message.offset()] = number_in(message.value(), topic, partition)
        return found
    finally:
        consumer.close()


def check(writer: NumberedWriter, bootstrap: str, topic: str, partition: int = 0) -> None:
    assert not writer.failures, writer.failures[:3]
    found = read_all(bootstrap, topic, partition)
    lost = {offset: number for offset, number in writer.acknowledged.items() if found.get(offset) != number}
    assert not lost, f"{len(lost)} acknowledged records are missing or others: {sorted(lost.items())[:5]}"
    numbers = [found[offset] for offset in sorted(found)]
    assert numbers == list(range(writer.written)), "not every number once and in order"


def test_all_replicas_have_the_same_bytes(cluster: Cluster) -> None:
    topic = unique_name("same")
    cluster.create_topic(topic, 3)
    leaders = {view.leader for view in cluster.partitions(topic).values()}
    assert leaders == {1, 2, 3}, "leaders are spread over all brokers"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
    )
    for number in range(3_000):
        producer.produce(topic, numbered(topic, number % 3, number), partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0
    for partition in range(3):
        eventually(partial(cluster.have_same_log, topic, partition), DEADLINE_S)
        assert len(read_all(cluster.bootstrap, topic, partition)) == 1_000


def is_led_by_another(cluster: Cluster, topic: str, former: int) -> bool:
    return cluster.partitions(topic)[0].leader not in (former, -1)


def test_a_killed_leader_loses_nothing_and_comes_back_in_sync(cluster: Cluster) -> None:
    topic = unique_name("killed")
    cluster.create_topic(topic)
    with NumberedWriter(cluster.bootstrap, topic) as writer:
        writer.wait_for_more()
        for _ in range(2):
            leader = cluster.partitions(topic)[0].leader
            cluster.brokers[leader].kill()
            writer.wait_for_more()
            eventually(partial(is_led_by_another, cluster, topic, leader), DEADLINE_S)
            cluster.brokers[leader].start()
            eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
            writer.wait_for_more()
    check(writer, cluster.bootstrap, topic)
    eventually(lambda: cluster.have_same_log(topic, 0), DEADLINE_S)


def log_start(broker: BrokerProcess, topic: str) -> int:
    """Where the broker's copy of the first partition begins, as its disk says."""
    path = broker.data_dir / LOG_START_OFFSETS
    return read_offsets(DiskVolume(), str(path)).get(TopicPartition(topic, 0), 0)


def test_a_replica_comes_back_to_a_log_that_begins_inside_of_a_batch(cluster: Cluster) -> None:
    """Records are deleted up to the middle of a batch, as Kafka Streams does, while a replica is away."""
    topic = unique_name("purged")
    cluster.create_topic(topic)
    leader_id = cluster.partitions(topic)[0].leader
    leader = cluster.brokers[leader_id]
    away_id = next(node_id for node_id in cluster.brokers if node_id != leader_id)
    with RawConnection((leader.host, leader.port)) as connection:

        def write(count: int) -> None:
            for _ in range(count):
                records = [Record(number, NOW_MS, None, b"%d" % number) for number in range(10)]
                assert produce(connection, topic, build_batch(records))["error_code"] == "none"

        write(2)
        eventually(lambda: cluster.have_same_log(topic, 0), DEADLINE_S)
        cluster.brokers[away_id].kill()
        write(5)
        place = confluent_kafka.TopicPartition(topic, 0, 55)
        deleted = next(iter(cluster.admin.delete_records([place]).values())).result(30)
        assert deleted.low_watermark == 55
        # The answer waited for whoever could delete, and not for the one that is away.
        for node_id, broker in cluster.brokers.items():
            assert log_start(broker, topic) == (55 if node_id != away_id else 0)
        cluster.brokers[away_id].start()
        eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
        write(1)
    logs = cluster.log_bytes(topic, 0)
    assert 0 < len(logs[away_id]) < len(logs[leader_id])
    assert logs[leader_id].endswith(logs[away_id]), "from the batch on in which the log begins"
    for node_id, broker in cluster.brokers.items():
        if node_id != away_id:
            broker.kill()
    try:
        # The others are gone: whoever is left has everything, or nobody leads.
        eventually(lambda: cluster.partitions(topic, seen_by=away_id)[0].leader == away_id, DEADLINE_S)
    finally:
        for node_id, broker in cluster.brokers.items():
            if node_id != away_id:
                broker.start()
    eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.brokers[away_id].bootstrap, "group.id": "none", "log_level": 0}
    )
    place = confluent_kafka.TopicPartition(topic, 0)
    # It has led alone, so what the others have now is what it had.
    assert consumer.get_watermark_offsets(place, timeout=10) == (55, 80)
    consumer.close()


def test_a_rolling_restart_fails_no_send(cluster: Cluster) -> None:
    topic = unique_name("rolling")
    cluster.create_topic(topic)
    with NumberedWriter(cluster.bootstrap, topic) as writer:
        writer.wait_for_more()
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
            writer.wait_for_more()
            broker.start()
            eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
            writer.wait_for_more()
    check(writer, cluster.bootstrap, topic)


def coordinator_of(cluster: Cluster, group: str) -> int:
    described = cluster.admin.describe_consumer_groups([group])[group].result(30)
    return int(described.coordinator.id)


def test_a_group_survives_its_coordinator(cluster: Cluster) -> None:
    topic, group = unique_name("grouped"), unique_name("group")
    cluster.create_topic(topic)
    with NumberedWriter(cluster.bootstrap, topic) as writer:
        writer.wait_for_more()
        consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        seen: list[int] = []

        def read_and_commit(count: int) -> None:
            deadline = time.monotonic() + DEADLINE_S
            target = len(seen) + count
            while len(seen) < target:
                assert time.monotonic() < deadline, f"{len(seen)} of {target} read"
                messages = [each for each in consumer.consume(50, timeout=1.0) if each.error() is None]
                seen.extend(number_in(message.value(), topic, 0) for message in messages)
                if messages:
                    commit(messages[-1].offset() + 1)

        def commit(offset: int) -> None:
            place = confluent_kafka.TopicPartition(topic, 0, offset)
            deadline = time.monotonic() + DEADLINE_S
            while True:
                try:
                    consumer.commit(offsets=[place], asynchronous=False)
                    return
                except confluent_kafka.KafkaException:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)

        read_and_commit(50)
        victim = coordinator_of(cluster, group)
        cluster.brokers[victim].kill()
        read_and_commit(50)
        cluster.brokers[victim].start()
        eventually(lambda: cluster.is_in_sync(topic), DEADLINE_S)
        read_and_commit(50)
        place = confluent_kafka.TopicPartition(topic, 0)
        committed = consumer.committed([place], timeout=60)[0].offset
        consumer.close()
    assert committed == len(seen)
    assert seen == list(range(len(seen))), "every record once and in order"


def test_a_transaction_over_partitions_of_several_brokers_is_whole(cluster: Cluster) -> None:
    topic = unique_name("whole")
    cluster.create_topic(topic, 3)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": unique_name("tx"),
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(DEADLINE_S)
    for round_number in range(4):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, numbered(topic, partition, round_number), partition=partition)
        producer.flush(DEADLINE_S)
        if round_number % 2:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    for partition in range(3):
        numbers = sorted(read_all(cluster.bootstrap, topic, partition).values())
        assert numbers == [0, 2], f"partition {partition}"


# What single requests are told, read by kio: nothing of our own codecs takes part.


def connect(cluster: Cluster, node_id: int) -> RawConnection:
    broker = cluster.brokers[node_id]
    return RawConnection((broker.host, broker.port))


def leader_and_follower(cluster: Cluster, topic: str) -> tuple[int, int]:
    leader = cluster.partitions(topic)[0].leader
    return leader, next(node_id for node_id in cluster.brokers if node_id != leader)


def test_who_asks_the_wrong_broker_is_told_the_right_one(cluster: Cluster) -> None:
    topic = unique_name("redirect")
    cluster.create_topic(topic)
    leader, follower = leader_and_follower(cluster, topic)
    with connect(cluster, follower) as connection:
        request = produce_request({(topic, 0): bytes(build_batch([Record(0, NOW_MS, None, b"x")]))})
        answer = connection.call(PRODUCE, PRODUCE_VERSION, request)
        (result,) = answer["responses"][0]["partition_responses"]
        assert result["error_code"] == "not_leader_or_follower"
        assert result["current_leader"]["leader_id"] == leader
        endpoint = (cluster.brokers[leader].host, cluster.brokers[leader].port)
        named = [(node["node_id"], node["host"], node["port"]) for node in answer["node_endpoints"]]
        assert named == [(leader, *endpoint)]
        ident = topic_id(connection, topic)
        answer = connection.call(FETCH, FETCH_VERSION, fetch_request({ident: [fetch_partition(0, 0)]}))
        (result,) = answer["responses"][0]["partitions"]
        assert result["error_code"] == "not_leader_or_follower"
        assert result["current_leader"]["leader_id"] == leader
        named = [(node["node_id"], node["host"], node["port"]) for node in answer["node_endpoints"]]
        assert named == [(leader, *endpoint)]


def test_s13_nobody_fetches_in_the_name_of_a_broker(cluster: Cluster) -> None:
    topic = unique_name("pretender")
    cluster.create_topic(topic)
    leader, follower = leader_and_follower(cluster, topic)
    with connect(cluster, leader) as connection:
        produce(connection, topic, bytes(build_batch([Record(0, NOW_MS, None, b"x")])))
        ident = topic_id(connection, topic)
        for epoch in (-1, 0, 2**40):
            request = fetch_request(
                {ident: [fetch_partition(0, 10_000)]},
                replica_state={"replica_id": follower, "replica_epoch": epoch},
            )
            answer = connection.call(FETCH, FETCH_VERSION, request)
            (result,) = answer["responses"][0]["partitions"]
            assert result["error_code"] == "not_leader_or_follower"
    assert cluster.partitions(topic)[0].isr == (1, 2, 3)


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: Cluster) -> None:
    topic = unique_name("near")
    cluster.create_topic(topic)
    leader, follower = leader_and_follower(cluster, topic)
    rack = f"rack-{follower}"
    with connect(cluster, leader) as connection:
        produce(connection, topic, bytes(build_batch([Record(0, NOW_MS, None, b"near")])))
        ident = topic_id(connection, topic)
        request = fetch_request({ident: [fetch_partition(0, 0)]}, rack_id=rack)

        def preferred() -> int:
            answer = connection.call(FETCH, FETCH_VERSION, request)
            return int(answer["responses"][0]["partitions"][0]["preferred_read_replica"])

        eventually(lambda: preferred() == follower, DEADLINE_S)
    with connect(cluster, follower) as connection:

        def found() -> bytes:
            answer = connection.call(FETCH, FETCH_VERSION, request)
            (result,) = answer["responses"][0]["partitions"]
            assert result["error_code"] == "none", result
            return result["records"] or b""

        eventually(lambda: b"near" in found(), DEADLINE_S)
