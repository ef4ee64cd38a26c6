"""Administration through Kafka's Java client, with the answers and errors that Apache Kafka gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.clients import JavaClient
from tests.compat.messages import Message
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import create_topic, unique_name


class Admin:
    def __init__(self, java: JavaHost, broker: BrokerProcess) -> None:
        self._java = java
        self._bootstrap = broker.bootstrap

    def __call__(self, call: str, /, **arguments: Any) -> Any:
        return self._java.admin(self._bootstrap, call, **arguments)

    def create(self, name: str, **topic: Any) -> Any:
        """Create one topic with details: them, or the error's name."""
        answer = self("createTopics", topics=[{"name": name} | topic], details=True)[name]
        return answer.get("error", answer)

    def config(self, kind: str, name: str) -> Any:
        return self("describeConfigs", resources=[{"type": kind, "name": name}])[f"{kind}:{name}"]

    def alter(self, kind: str, name: str, *changes: tuple[str, str, str | None], **options: Any) -> Any:
        """Alter one resource's settings: "ok" or the error's name."""
        resource = {"type": kind, "name": name, "changes": [list(change) for change in changes]}
        answer = self("incrementalAlterConfigs", resources=[resource], **options)[f"{kind}:{name}"]
        return answer if answer == "ok" else answer["error"]


@pytest.fixture(scope="module")
def admin(java: JavaHost, broker: BrokerProcess) -> Admin:
    return Admin(java, broker)


@pytest.fixture(scope="module")
def node_id(admin: Admin) -> int:
    return int(admin("describeCluster")["nodes"][0]["id"])


def test_the_cluster_describes_itself(admin: Admin, broker: BrokerProcess) -> None:
    cluster = admin("describeCluster")
    (node,) = cluster["nodes"]
    assert (node["host"], node["port"]) == (broker.host, broker.port)
    assert cluster["controller"] == node["id"]
    assert len(cluster["cluster_id"]) == 22


def test_a_topic_is_created_listed_described_and_deleted(admin: Admin, node_id: int) -> None:
    name = unique_name("life")
    made = admin.create(name, partitions=4, replicas=1, configs={"retention.ms": "123456"})
    assert (made["partitions"], made["replicas"]) == (4, 1)
    assert made["configs"]["retention.ms"]["value"] == "123456"
    assert made["configs"]["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert made["configs"]["segment.bytes"]["value"] == "1073741824"

    assert name in admin("listTopics")["names"]
    described = admin("describeTopics", topics=[name])[name]
    assert described == {
        "name": name,
        "id": made["id"],
        "internal": False,
        "partitions": [
            {"partition": number, "leader": node_id, "replicas": [node_id], "isr": [node_id]}
            for number in range(4)
        ],
    }
    assert admin("describeTopicsById", ids=[made["id"]])[made["id"]] == described

    assert admin("deleteTopics", topics=[name]) == {name: "ok"}
    assert name not in admin("listTopics")["names"]
    assert admin("describeTopics", topics=[name])[name]["error"] == "UnknownTopicOrPartitionException"


def test_a_topic_is_deleted_by_id(admin: Admin) -> None:
    name = unique_name("by-id")
    made = admin.create(name, partitions=1, replicas=1)
    assert admin("deleteTopicsById", ids=[made["id"]]) == {made["id"]: "ok"}
    assert name not in admin("listTopics")["names"]
    again = admin("deleteTopicsById", ids=[made["id"]])[made["id"]]
    assert again["error"] == "UnknownTopicIdException"


def test_defaults_come_from_the_broker(admin: Admin) -> None:
    made = admin.create(unique_name("defaults"))
    assert (made["partitions"], made["replicas"]) == (3, 1)


@pytest.mark.parametrize(
    "wanted, error",
    [
        ({"name": "bad name"}, "InvalidTopicException"),
        ({"name": ".."}, "InvalidTopicException"),
        ({"name": "x" * 250}, "InvalidTopicException"),
        ({"name": ""}, "InvalidTopicException"),
        ({"partitions": 0}, "InvalidPartitionsException"),
        ({"partitions": -2}, "InvalidPartitionsException"),
        ({"replicas": 2, "partitions": 1}, "InvalidReplicationFactorException"),
        ({"replicas": 0, "partitions": 1}, "InvalidReplicationFactorException"),
        ({"configs": {"retention.ms": "soon"}}, "InvalidConfigurationException"),
        ({"configs": {"cleanup.policy": "shred"}}, "InvalidConfigurationException"),
        ({"configs": {"compression.type": "rar"}}, "InvalidConfigurationException"),
        ({"configs": {"segment.bytes": "1"}}, "InvalidConfigurationException"),
        ({"configs": {"min.cleanable.dirty.ratio": "1.5"}}, "InvalidConfigurationException"),
        ({"configs": {"no.such.setting": "1"}}, "InvalidConfigurationException"),
        ({"assignments": {"0": [99]}}, "InvalidReplicaAssignmentException"),
        ({"assignments": {"1": ["self"]}}, "InvalidReplicaAssignmentException"),
        ({"assignments": {"0": ["self", "self"]}}, "InvalidReplicaAssignmentException"),
    ],
    ids=str,
)
def test_wrong_topics_are_refused_as_kafka_refuses_them(
    wanted: dict[str, Any], error: str, admin: Admin, node_id: int
) -> None:
    before = admin("listTopics")["names"]
    wanted = {"name": unique_name("wrong")} | wanted
    if "assignments" in wanted:
        wanted["assignments"] = {
            partition: [node_id if broker == "self" else broker for broker in brokers]
            for partition, brokers in wanted["assignments"].items()
        }
    assert admin.create(**wanted) == error
    assert admin("listTopics")["names"] == before


def test_a_topic_with_explicit_replicas(admin: Admin, node_id: int) -> None:
    name = unique_name("assigned")
    assert admin.create(name, assignments={"0": [node_id], "1": [node_id]})["partitions"] == 2


def test_a_second_topic_of_that_name_is_refused(admin: Admin) -> None:
    name = unique_name("twice")
    admin.create(name, partitions=1, replicas=1)
    assert admin.create(name, partitions=1, replicas=1) == "TopicExistsException"
    # Dots and underscores collide in metric names.
    admin.create(f"a.{name}", partitions=1, replicas=1)
    assert admin.create(f"a_{name}", partitions=1, replicas=1) == "InvalidTopicException"


def test_validate_only_creates_nothing(admin: Admin) -> None:
    name = unique_name("dry")
    wanted = [{"name": name, "partitions": 2, "replicas": 1}]
    assert admin("createTopics", topics=wanted, validate_only=True) == {name: "ok"}
    assert name not in admin("listTopics")["names"]


def test_deleting_an_absent_topic_is_an_error(admin: Admin) -> None:
    name = unique_name("absent")
    assert admin("deleteTopics", topics=[name])[name]["error"] == "UnknownTopicOrPartitionException"


def test_partitions_are_added_but_never_taken_away(admin: Admin) -> None:
    name = unique_name("growing")
    admin.create(name, partitions=2, replicas=1)
    assert admin("createPartitions", topics={name: 6}, validate_only=True) == {name: "ok"}
    assert len(admin("describeTopics", topics=[name])[name]["partitions"]) == 2
    assert admin("createPartitions", topics={name: 5}) == {name: "ok"}
    assert len(admin("describeTopics", topics=[name])[name]["partitions"]) == 5
    for count in (5, 1, 0, -1):
        refused = admin("createPartitions", topics={name: count})[name]
        assert refused["error"] == "InvalidPartitionsException", count
    absent = unique_name("absent")
    refused = admin("createPartitions", topics={absent: 2})[absent]
    assert refused["error"] == "UnknownTopicOrPartitionException"


def test_records_are_deleted_up_to_an_offset(admin: Admin, broker: BrokerProcess, java: JavaHost) -> None:
    topic = create_topic(broker.bootstrap, unique_name("trimmed"))
    messages = [Message(key=None, value=b"%d" % number) for number in range(10)]
    JavaClient(java).write(broker.bootstrap, topic, 0, messages, "none")
    where = f"{topic}-0"

    def delete(before: int, partition: int = 0) -> Any:
        wanted = [{"topic": topic, "partition": partition, "before": before}]
        return admin("deleteRecords", partitions=wanted)[f"{topic}-{partition}"]

    assert delete(4) == 4
    # Going back changes nothing; the answer says what holds.
    assert delete(2) == 4
    assert delete(11)["error"] == "OffsetOutOfRangeException"
    earliest = [{"topic": topic, "partition": 0, "spec": "earliest"}]
    assert admin("listOffsets", partitions=earliest)[where]["offset"] == 4
    received = JavaClient(java).read(broker.bootstrap, {(topic, 0): (4, 10)})
    assert [message.offset for message in received] == [4, 5, 6, 7, 8, 9]
    # -1 is the high watermark: everything.
    assert delete(-1) == 10
    assert admin("listOffsets", partitions=earliest)[where]["offset"] == 10
    # A topic with another policy than delete keeps its records.
    compacted = create_topic(broker.bootstrap, unique_name("compact"), configs={"cleanup.policy": "compact"})
    wanted = [{"topic": compacted, "partition": 0, "before": 0}]
    refused = admin("deleteRecords", partitions=wanted)[f"{compacted}-0"]
    assert refused["error"] == "PolicyViolationException"


def test_topic_settings_show_value_source_type_and_synonyms(admin: Admin) -> None:
    name = unique_name("settings")
    admin.create(name, partitions=1, replicas=1, configs={"max.message.bytes": "5000"})
    config = admin.config("TOPIC", name)
    assert config["max.message.bytes"] == {
        "value": "5000",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "type": "INT",
        "default": False,
        "read_only": False,
        "sensitive": False,
        "documentation": None,
        "synonyms": [
            ["max.message.bytes", "5000", "DYNAMIC_TOPIC_CONFIG"],
            ["message.max.bytes", "1048588", "DEFAULT_CONFIG"],
        ],
    }
    assert config["retention.ms"]["type"] == "LONG"
    assert config["cleanup.policy"]["value"] == "delete"
    assert config["cleanup.policy"]["source"] == "DEFAULT_CONFIG"
    assert config["cleanup.policy"]["type"] == "LIST"
    assert config["cleanup.policy"]["synonyms"] == [["log.cleanup.policy", "delete", "DEFAULT_CONFIG"]]
    assert config["preallocate"]["type"] == "BOOLEAN"
    assert config["min.cleanable.dirty.ratio"]["type"] == "DOUBLE"
    assert config["segment.bytes"]["type"] == "INT"
    documented = admin("describeConfigs", resources=[{"type": "TOPIC", "name": name}], documentation=True)[
        f"TOPIC:{name}"
    ]
    assert all(entry["documentation"] for entry in documented.values())


KAFKAS_TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_topic_settings_have_kafkas_names_and_defaults(admin: Admin) -> None:
    name = unique_name("plain")
    admin.create(name, partitions=1, replicas=1)
    config = admin.config("TOPIC", name)
    assert {key: config.get(key, {}).get("value") for key in KAFKAS_TOPIC_SETTINGS} == KAFKAS_TOPIC_SETTINGS


def test_topic_settings_change_and_go_back(admin: Admin) -> None:
    name = unique_name("altered")
    admin.create(name, partitions=1, replicas=1)
    assert admin.alter("TOPIC", name, ("SET", "retention.ms", "1000000"), validate_only=True) == "ok"
    assert admin.config("TOPIC", name)["retention.ms"]["value"] == "604800000"
    changes = (("SET", "retention.ms", "1000000"), ("APPEND", "cleanup.policy", "compact"))
    assert admin.alter("TOPIC", name, *changes) == "ok"
    config = admin.config("TOPIC", name)
    assert config["retention.ms"]["value"] == "1000000"
    assert config["cleanup.policy"]["value"] == "delete,compact"
    changes2 = (("DELETE", "retention.ms", None), ("SUBTRACT", "cleanup.policy", "compact"))
    assert admin.alter("TOPIC", name, *changes2) == "ok"
    config = admin.config("TOPIC", name)
    assert config["retention.ms"]["value"] == "604800000"
    assert config["cleanup.policy"]["value"] == "delete"


@pytest.mark.parametrize(
    "change, error",
    [
        (("SET", "retention.ms", "often"), "InvalidConfigurationException"),
        (("SET", "retention.ms", "-5"), "InvalidConfigurationException"),
        (("SET", "no.such.setting", "1"), "InvalidConfigurationException"),
        (("SET", "segment.bytes", "3"), "InvalidConfigurationException"),
        (("APPEND", "retention.ms", "1"), "InvalidConfigurationException"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_and_change_nothing(
    change: tuple[str, str, str | None], error: str, admin: Admin
) -> None:
    name = unique_name("kept")
    admin.create(name, partitions=1, replicas=1)
    before = admin.config("TOPIC", name)
    assert admin.alter("TOPIC", name, ("SET", "flush.ms", "777"), change) == error
    assert admin.config("TOPIC", name) == before


def test_settings_of_absent_things_are_errors(admin: Admin) -> None:
    absent = unique_name("absent")
    assert admin.config("TOPIC", absent)["error"] == "UnknownTopicOrPartitionException"
    assert admin.alter("TOPIC", absent, ("SET", "retention.ms", "1")) == "UnknownTopicOrPartitionException"


def test_broker_settings_are_described_and_altered(admin: Admin, node_id: int) -> None:
    name = str(node_id)
    config = admin.config("BROKER", name)
    assert config["message.max.bytes"]["value"] == "1048588"
    assert config["num.partitions"]["value"] == "3"
    assert config["num.partitions"]["source"] == "STATIC_BROKER_CONFIG"
    assert config["num.partitions"]["read_only"]
    assert not config["message.max.bytes"]["read_only"]

    def limit() -> tuple[str, str]:
        entry = admin.config("BROKER", name)["message.max.bytes"]
        assert entry["synonyms"][-1] == ["message.max.bytes", "1048588", "DEFAULT_CONFIG"]
        return entry["value"], entry["source"]

    untouched = ("1048588", "DEFAULT_CONFIG")
    assert admin.alter("BROKER", name, ("SET", "message.max.bytes", "1500000")) == "ok"
    eventually(lambda: limit() == ("1500000", "DYNAMIC_BROKER_CONFIG"))
    assert admin.alter("BROKER", name, ("DELETE", "message.max.bytes", None)) == "ok"
    eventually(lambda: limit() == untouched)
    # The cluster-wide default, under the empty name.
    assert admin.alter("BROKER", "", ("SET", "message.max.bytes", "1600000")) == "ok"
    eventually(lambda: limit() == ("1600000", "DYNAMIC_DEFAULT_BROKER_CONFIG"))
    assert admin.alter("BROKER", "", ("DELETE", "message.max.bytes", None)) == "ok"
    eventually(lambda: limit() == untouched)


def test_read_only_broker_settings_stay(admin: Admin, node_id: int) -> None:
    refused = admin.alter("BROKER", str(node_id), ("SET", "num.partitions", "9"))
    assert refused == "InvalidRequestException"
    assert admin.config("BROKER", str(node_id))["num.partitions"]["value"] == "3"


def test_config_resources_are_listed(admin: Admin, node_id: int) -> None:
    name = unique_name("listed")
    admin.create(name, partitions=1, replicas=1)
    assert name in admin("listConfigResources", type="TOPIC")["names"]
    assert str(node_id) in admin("listConfigResources", type="BROKER")["names"]


def test_log_directories_show_sizes(
    admin: Admin, node_id: int, broker: BrokerProcess, java: JavaHost
) -> None:
    topic = create_topic(broker.bootstrap, unique_name("sized"), partitions=2)
    messages = [Message(key=None, value=bytes(10_000)) for _ in range(10)]
    JavaClient(java).write(broker.bootstrap, topic, 1, messages, "none")
    (path, directory), *others = admin("describeLogDirs", brokers=[node_id])[str(node_id)].items()
    assert not others
    assert path.startswith(str(broker.data_dir))
    assert directory["error"] is None
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    assert directory["replicas"][f"{topic}-0"] == {"size": 0, "lag": 0, "future": False}
    assert 100_000 < directory["replicas"][f"{topic}-1"]["size"] < 110_000


def test_a_partition_without_idempotent_producers_has_none(admin: Admin, broker: BrokerProcess) -> None:
    topic = create_topic(broker.bootstrap, unique_name("few"))
    answer = admin("describeProducers", partitions=[{"topic": topic, "partition": 0}])
    assert answer == {f"{topic}-0": []}
