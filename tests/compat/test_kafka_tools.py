"""Kafka's own command-line tools and kcat, unchanged, against a broker."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.compat.clients import ConfluentClient, JavaClient
from tests.compat.messages import Message
from tests.harness.java import JavaHost
from tests.harness.kcat import Kcat
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


class Tools:
    def __init__(self, java: JavaHost, broker: BrokerProcess) -> None:
        self._java = java
        self._bootstrap = broker.bootstrap

    def run(self, main: str, *words: str, stdin: str = "") -> Any:
        return self._java.tool(main, ["--bootstrap-server", self._bootstrap, *words], stdin)

    def ok(self, main: str, *words: str, stdin: str = "") -> str:
        answer = self.run(main, *words, stdin=stdin)
        assert answer["status"] == 0, answer
        output: str = answer["stdout"]
        return output


@pytest.fixture(scope="module")
def tools(java: JavaHost, broker: BrokerProcess) -> Tools:
    return Tools(java, broker)


def test_kafka_topics_manages_topics(tools: Tools) -> None:
    name = unique_name("tool")
    made = tools.ok(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "flush.ms=5000")
    assert f"Created topic {name}." in made
    assert name in tools.ok(TOPICS, "--list").split()
    described = tools.ok(TOPICS, "--describe", "--topic", name)
    assert re.search(r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: .*flush\.ms=5000", described)
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 2
    tools.ok(TOPICS, "--alter", "--topic", name, "--partitions", "4")
    assert "PartitionCount: 4" in tools.ok(TOPICS, "--describe", "--topic", name)
    assert tools.ok(TOPICS, "--describe", "--topic", name, "--under-replicated-partitions") == ""
    assert tools.ok(TOPICS, "--describe", "--topic", name, "--unavailable-partitions") == ""
    again = tools.run(TOPICS, "--create", "--topic", name)
    assert again["status"] == 1
    assert f"Topic '{name}' already exists." in again["stdout"]
    tools.ok(TOPICS, "--delete", "--topic", name)
    assert name not in tools.ok(TOPICS, "--list").split()
    absent = tools.run(TOPICS, "--describe", "--topic", name)
    assert absent["status"] == 1
    assert f"Topic '{name}' does not exist as expected" in absent["stdout"]


def test_kafka_configs_changes_settings(tools: Tools, broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("tool"))
    entity = ("--entity-type", "topics", "--entity-name", name)
    changed = tools.ok(
        CONFIGS, "--alter", *entity, "--add-config", "retention.ms=777,cleanup.policy=[compact,delete]"
    )
    assert f"Completed updating config for topic {name}." in changed
    described = tools.ok(CONFIGS, "--describe", *entity)
    assert re.search(r"retention\.ms=777 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:", described)
    assert "cleanup.policy=compact,delete" in described
    tools.ok(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    described = tools.ok(CONFIGS, "--describe", *entity)
    assert "retention.ms" not in described
    wrong = tools.run(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=soon")
    assert wrong["status"] == 1
    assert "InvalidConfigurationException" in wrong["stderr"]

    every_broker = ("--entity-type", "brokers", "--entity-default")
    tools.ok(CONFIGS, "--alter", *every_broker, "--add-config", "log.cleaner.backoff.ms=14000")
    described = tools.ok(CONFIGS, "--describe", *every_broker)
    assert "log.cleaner.backoff.ms=14000" in described
    tools.ok(CONFIGS, "--alter", *every_broker, "--delete-config", "log.cleaner.backoff.ms")
    all_settings = tools.ok(CONFIGS, "--describe", *entity, "--all")
    assert "segment.bytes=1073741824" in all_settings


def test_kafka_configs_takes_settings_of_brokers_without_effect_and_shows_them(tools: Tools) -> None:
    entity = ("--entity-type", "brokers", "--entity-default")
    tools.ok(CONFIGS, "--alter", *entity, "--add-config", "log.cleaner.threads=2")
    described = tools.ok(CONFIGS, "--describe", *entity)
    assert re.search(r"log\.cleaner\.threads=2 sensitive=false", described)
    wrong = tools.run(CONFIGS, "--alter", *entity, "--add-config", "log.cleaner.threads=-1")
    assert wrong["status"] == 1
    tools.ok(CONFIGS, "--alter", *entity, "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads" not in tools.ok(CONFIGS, "--describe", *entity)


def test_kafka_get_offsets_prints_every_kind(tools: Tools, broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("tool"), partitions=2)
    messages = [Message(key=None, value=b"x", timestamp_ms=5_000 + number) for number in range(4)]
    ConfluentClient().write(broker.bootstrap, name, 1, messages, "none")

    def offsets(moment: str) -> list[str]:
        main = "org.apache.kafka.tools.GetOffsetShell"
        return tools.ok(main, "--topic", name, "--time", moment).split()

    assert offsets("-1") == [f"{name}:0:0", f"{name}:1:4"]
    assert offsets("earliest") == [f"{name}:0:0", f"{name}:1:0"]
    assert f"{name}:1:3" in offsets("max-timestamp")
    assert f"{name}:1:2" in offsets("5002")


def test_kafka_log_dirs_reports_sizes(tools: Tools, broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("tool"))
    ConfluentClient().write(broker.bootstrap, name, 0, [Message(key=None, value=bytes(50_000))], "none")
    output = tools.ok("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", name)
    report = json.loads(output.splitlines()[-1])
    (partition,) = report["brokers"][0]["logDirs"][0]["partitions"]
    assert partition["partition"] == f"{name}-0"
    assert 50_000 < partition["size"] < 51_000


def test_kafka_delete_records_trims(
    tools: Tools, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = create_topic(broker.bootstrap, unique_name("tool"))
    ConfluentClient().write(broker.bootstrap, name, 0, [Message(key=None, value=b"x")] * 8, "none")
    plan = tmp_path_factory.mktemp("plan") / "plan.json"
    partitions = [{"topic": name, "partition": 0, "offset": 6}]
    plan.write_text(json.dumps({"partitions": partitions, "version": 1}))
    output = tools.ok("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {name}-0\tlow_watermark: 6" in output


def test_the_console_clients_pass_messages(tools: Tools, broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("tool"))
    tools.ok(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--topic", name, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        *("--compression-codec", "zstd"),
        stdin="a:eins\nb:zwei\nc:drei\n",
    )
    output = tools.ok(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", name, "--partition", "0", "--offset", "earliest", "--max-messages", "3"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        *("--timeout-ms", "15000"),
    )
    assert output.splitlines() == ["Offset:0\ta\teins", "Offset:1\tb\tzwei", "Offset:2\tc\tdrei"]


SINGLE_BROKER_APIS = {
    "Produce(0)": "0 to 13",
    "Fetch(1)": "4 to 18",
    "ListOffsets(2)": "1 to 11",
    "Metadata(3)": "0 to 13",
    "ApiVersions(18)": "0 to 4",
    "CreateTopics(19)": "2 to 7",
    "DeleteTopics(20)": "1 to 6",
    "DeleteRecords(21)": "0 to 2",
    "InitProducerId(22)": "0 to 5",
    "OffsetForLeaderEpoch(23)": "2 to 4",
    "DescribeConfigs(32)": "1 to 4",
    "AlterConfigs(33)": "0 to 2",
    "DescribeLogDirs(35)": "1 to 5",
    "CreatePartitions(37)": "0 to 3",
    "IncrementalAlterConfigs(44)": "0 to 1",
    "DescribeCluster(60)": "0 to 2",
    "DescribeProducers(61)": "0",
    "ListConfigResources(74)": "0 to 1",
    "DescribeTopicPartitions(75)": "0",
}


def test_kafka_broker_api_versions_shows_kafkas_ranges(tools: Tools) -> None:
    output = tools.ok("org.apache.kafka.tools.BrokerApiVersionsCommand")
    found = dict(re.findall(r"^\s+(\w+\(\d+\)): (\d+(?: to \d+)?) \[usable", output, re.MULTILINE))
    assert {name: found.get(name) for name in SINGLE_BROKER_APIS} == SINGLE_BROKER_APIS


def test_kafka_metadata_quorum_shows_the_only_broker_as_leader_and_voter(tools: Tools) -> None:
    status = tools.ok(QUORUM, "describe", "--status")
    found = dict(re.findall(r"^(\w+):\s+(.*)$", status, re.MULTILINE))
    assert found["LeaderId"] == "1", status
    assert int(found["LeaderEpoch"]) > 0
    assert int(found["HighWatermark"]) > 0
    assert found["MaxFollowerLag"] == "0"
    (voter,) = json.loads(found["CurrentVoters"])
    assert voter["id"] == 1
    replication = tools.ok(QUORUM, "describe", "--replication")
    (line,) = [line for line in replication.splitlines() if "Leader" in line.split()]
    assert line.split()[0] == "1"


def test_kcat_shows_metadata(kcat: Kcat, broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("kcat"), partitions=3)
    answer = kcat.run("-L", "-J", "-b", broker.bootstrap, "-t", name)
    assert answer.returncode == 0, answer.stderr
    metadata = json.loads(answer.stdout)
    assert [node["name"] for node in metadata["brokers"]] == [broker.bootstrap]
    (topic,) = metadata["topics"]
    assert [partition["partition"] for partition in topic["partitions"]] == [0, 1, 2]


def test_kcat_finds_an_offset_by_time(kcat: Kcat, broker: BrokerProcess) -> None:
    name = create_topic(broker.bootstrap, unique_name("kcat"))
    messages = [Message(key=None, value=b"x", timestamp_ms=7_000 + number) for number in range(4)]
    ConfluentClient().write(broker.bootstrap, name, 0, messages, "none")
    answer = kcat.run("-Q", "-b", broker.bootstrap, "-t", f"{name}:0:7002")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [name.encode(), b"[0]", b"offset", b"2"]


def test_kcat_follows_a_topic_by_pipe(kcat: Kcat, broker: BrokerProcess, java: JavaHost) -> None:
    name = create_topic(broker.bootstrap, unique_name("kcat"))
    JavaClient(java).write(broker.bootstrap, name, 0, [Message(key=b"k", value=b"from java")], "lz4")
    answer = kcat.run("-C", "-b", broker.bootstrap, "-t", name, "-o", "beginning", "-e", "-J")
    record = json.loads(answer.stdout.splitlines()[0])
    assert (record["key"], record["payload"]) == ("k", "from java")
    patience = ("-X", "topic.metadata.propagation.max.ms=300")
    refused = kcat.run("-P", "-b", broker.bootstrap, "-t", unique_name("absent"), *patience, stdin=b"x\n")
    assert refused.returncode != 0
    assert b"Unknown topic" in refused.stderr
