"""Administration through librdkafka, kafka-python and aiokafka: the same acts, their own error names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka.admin
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.clients import ConfluentClient
from tests.compat.messages import Message
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import admin_client, create_topic, unique_name


def error_of(act: Callable[[], Any]) -> str:
    """The name of the error that librdkafka reports."""
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        act()
    name: str = refused.value.args[0].name()
    return name


class TestLibrdkafka:
    @pytest.fixture
    def admin(self, broker: BrokerProcess) -> Any:
        return admin_client(broker.bootstrap)

    def test_topics_live_and_die(self, admin: Any, broker: BrokerProcess) -> None:
        name = unique_name("rd")
        create_topic(broker.bootstrap, name, 2)
        described = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(10)
        assert [partition.id for partition in described.partitions] == [0, 1]
        again = NewTopic(name, num_partitions=1, replication_factor=1)
        assert error_of(lambda: admin.create_topics([again])[name].result(10)) == "TOPIC_ALREADY_EXISTS"
        admin.delete_topics([name])[name].result(10)
        eventually(lambda: name not in admin.list_topics(timeout=60).topics)
        assert error_of(lambda: admin.delete_topics([name])[name].result(10)) == "UNKNOWN_TOPIC_OR_PART"

    @pytest.mark.parametrize(
        "wanted, error",
        [
            ({"topic": "not/allowed"}, "TOPIC_EXCEPTION"),
            ({"num_partitions": 0}, "INVALID_PARTITIONS"),
            ({"replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
            ({"config": {"retention.ms": "x"}}, "INVALID_CONFIG"),
            ({"config": {"unknown.setting": "x"}}, "INVALID_CONFIG"),
        ],
        ids=str,
    )
    def test_wrong_topics_are_refused(self, wanted: dict[str, Any], error: str, admin: Any) -> None:
        defaults: dict[str, Any] = {"topic": unique_name("rd"), "num_partitions": 1, "replication_factor": 1}
        topic = NewTopic(**(defaults | wanted))
        assert error_of(lambda: admin.create_topics([topic])[topic.topic].result(10)) == error

    def test_partitions_grow(self, admin: Any, broker: BrokerProcess) -> None:
        name = create_topic(broker.bootstrap, unique_name("rd"))
        admin.create_partitions([NewPartitions(name, 4)])[name].result(10)
        eventually(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 4)
        refused = error_of(lambda: admin.create_partitions([NewPartitions(name, 2)])[name].result(10))
        assert refused == "INVALID_PARTITIONS"

    @pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
    def test_settings_are_described_and_altered(self, admin: Any, broker: BrokerProcess) -> None:
        name = create_topic(broker.bootstrap, unique_name("rd"))
        resource = ConfigResource(ResourceType.TOPIC, name)

        def value(key: str) -> str:
            entry = admin.describe_configs([resource])[resource].result(10)[key]
            return str(entry.value)

        assert value("retention.ms") == "604800000"
        change = ConfigEntry("retention.ms", "555", incremental_operation=AlterConfigOpType.SET)
        wanted = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        admin.incremental_alter_configs([wanted])[wanted].result(10)
        eventually(lambda: value("retention.ms") == "555")
        # The old call replaces all settings at once.
        whole = ConfigResource(ResourceType.TOPIC, name, set_config={"flush.ms": "4444"})
        admin.alter_configs([whole])[whole].result(10)
        eventually(lambda: (value("retention.ms"), value("flush.ms")) == ("604800000", "4444"))
        wrong = ConfigResource(ResourceType.TOPIC, name, set_config={"flush.ms": "often"})
        assert error_of(lambda: admin.alter_configs([wrong])[wrong].result(10)) == "INVALID_CONFIG"

    def test_records_are_deleted_and_offsets_listed(self, admin: Any, broker: BrokerProcess) -> None:
        name = create_topic(broker.bootstrap, unique_name("rd"))
        messages = [Message(key=None, value=b"x", timestamp_ms=1_000 + number) for number in range(9)]
        ConfluentClient().write(broker.bootstrap, name, 0, messages, "none")
        before = confluent_kafka.TopicPartition(name, 0, 3)
        (outcome,) = admin.delete_records([before]).values()
        assert outcome.result(10).low_watermark == 3
        partition = confluent_kafka.TopicPartition(name, 0)

        def find(spec: Any) -> tuple[int, int]:
            found = admin.list_offsets({partition: spec})[partition].result(10)
            return found.offset, found.timestamp

        assert find(OffsetSpec.earliest()) == (3, -1)
        assert find(OffsetSpec.latest()) == (9, -1)
        assert find(OffsetSpec.max_timestamp()) == (8, 1_008)
        assert find(OffsetSpec.for_timestamp(1_005)) == (5, 1_005)
        too_far = confluent_kafka.TopicPartition(name, 0, 10)
        (outcome,) = admin.delete_records([too_far]).values()
        assert error_of(lambda: outcome.result(10)) == "OFFSET_OUT_OF_RANGE"

    def test_the_cluster_is_described(self, admin: Any, broker: BrokerProcess) -> None:
        cluster = admin.describe_cluster().result(10)
        assert [(node.host, node.port) for node in cluster.nodes] == [(broker.host, broker.port)]
        assert cluster.controller.id == cluster.nodes[0].id
        assert cluster.cluster_id


class TestKafkaPython:
    @pytest.fixture
    def admin(self, broker: BrokerProcess) -> Iterator[Any]:
        client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        yield client
        client.close()

    def test_topics_live_and_die(self, admin: Any) -> None:
        name = unique_name("kp")
        wanted = {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"flush.ms": "9"}}}
        admin.create_topics(wanted, wait_for_metadata=True)
        assert name in admin.list_topics()
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 2
        (paged,) = admin.describe_topic_partitions([name], response_partition_limit=1)["topics"]
        assert len(paged["partitions"]) == 1
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics(wanted)
        with pytest.raises(kafka.errors.InvalidReplicationFactorError):
            admin.create_topics({unique_name("kp"): {"num_partitions": 1, "replication_factor": 5}})
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            admin.create_topics({unique_name("kp"): {"num_partitions": 0, "replication_factor": 1}})
        admin.create_partitions({name: 3})
        with pytest.raises(kafka.errors.InvalidPartitionsError):
            admin.create_partitions({name: 1})
        eventually(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3)
        admin.delete_topics([name])
        eventually(lambda: name not in admin.list_topics())
        with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
            admin.delete_topics([name])

    def test_settings_are_described_and_altered(self, admin: Any, broker: BrokerProcess) -> None:
        name = create_topic(broker.bootstrap, unique_name("kp"))

        def values() -> dict[str, str]:
            resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)
            found = admin.describe_configs([resource], config_filter="all")
            (entries,) = next(iter(found.values())).values()
            return {key: entry["value"] for key, entry in entries.items()}

        for incremental in (True, False):
            wanted = kafka.admin.ConfigResource(
                kafka.admin.ConfigResourceType.TOPIC, name, configs={"flush.ms": str(4_000 + incremental)}
            )
            admin.alter_configs([wanted], incremental=incremental)
            expected = str(4_000 + incremental)
            eventually(lambda: values()["flush.ms"] == expected)  # noqa: B023 - called before the next turn

    def test_records_are_deleted_and_offsets_listed(self, admin: Any, broker: BrokerProcess) -> None:
        name = create_topic(broker.bootstrap, unique_name("kp"))
        messages = [Message(key=None, value=b"x", timestamp_ms=1_000 + number) for number in range(9)]
        ConfluentClient().write(broker.bootstrap, name, 0, messages, "none")
        partition = kafka.TopicPartition(name, 0)
        assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
        specs = kafka.OffsetSpec
        found = [
            admin.list_partition_offsets({partition: spec})[partition].offset
            for spec in (specs.EARLIEST, specs.LATEST, specs.MAX_TIMESTAMP, 1_006)
        ]
        assert found == [4, 9, 8, 6]
        state = admin.describe_producers([partition])[partition]
        assert len(state.active_producers) == 1

    def test_the_cluster_and_its_disks_are_described(self, admin: Any, broker: BrokerProcess) -> None:
        name = create_topic(broker.bootstrap, unique_name("kp"))
        cluster = admin.describe_cluster()
        (node,) = cluster["brokers"]
        assert (node["host"], node["port"]) == (broker.host, broker.port)
        directories = str(admin.describe_log_dirs([name]))
        assert name in directories
        assert str(broker.data_dir) in directories


class TestAiokafka:
    def test_topics_live_and_die(self, broker: BrokerProcess) -> None:
        asyncio.run(_aiokafka_topics(broker))

    def test_settings_and_records(self, broker: BrokerProcess) -> None:
        asyncio.run(_aiokafka_settings(broker))


def _aiokafka_code(answer: Any) -> str:
    """The error name of a one-topic answer."""
    code = answer.topic_errors[0][1] if hasattr(answer, "topic_errors") else answer.topic_error_codes[0][1]
    name: str = aiokafka.errors.for_code(code).__name__
    return name


async def _aiokafka_topics(broker: BrokerProcess) -> None:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        name = unique_name("aio")
        topic = aiokafka.admin.NewTopic(name, num_partitions=2, replication_factor=1)
        assert _aiokafka_code(await admin.create_topics([topic])) == "NoError"
        assert _aiokafka_code(await admin.create_topics([topic])) == "TopicAlreadyExistsError"
        bad = aiokafka.admin.NewTopic(unique_name("aio"), num_partitions=1, replication_factor=7)
        assert _aiokafka_code(await admin.create_topics([bad])) == "InvalidReplicationFactorError"
        assert name in await admin.list_topics()
        (described,) = await admin.describe_topics([name])
        assert len(described["partitions"]) == 2
        await admin.create_partitions({name: aiokafka.admin.NewPartitions(3)})
        for _ in range(100):
            (described,) = await admin.describe_topics([name])
            if len(described["partitions"]) == 3:
                break
            await asyncio.sleep(0.05)
        assert len(described["partitions"]) == 3
        assert _aiokafka_code(await admin.delete_topics([name])) == "NoError"
        cluster = await admin.describe_cluster()
        assert [node["port"] for node in cluster["brokers"]] == [broker.port]
    finally:
        await admin.close()


async def _aiokafka_settings(broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("aio"))
    ConfluentClient().write(broker.bootstrap, name, 0, [Message(key=None, value=b"x")] * 5, "none")
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
        change = aiokafka.admin.config_resource.ConfigResource(kind, name, configs={"flush.ms": "4321"})
        await admin.alter_configs([change])
        wanted = aiokafka.admin.config_resource.ConfigResource(kind, name)
        values: dict[str, str] = {}
        for _ in range(100):
            (answer,) = await admin.describe_configs([wanted])
            values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            if values["flush.ms"] == "4321":
                break
            await asyncio.sleep(0.05)
        assert values["flush.ms"] == "4321"
        partition = aiokafka.TopicPartition(name, 0)
        deleted = await admin.delete_records({partition: aiokafka.admin.RecordsToDelete(before_offset=2)})
        assert deleted == {partition: 2}
    finally:
        await admin.close()
