"""`__consumer_offsets` as Kafka's own tools read it: from the files, and over the wire."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.compat.groups.feed import write_numbered
from tests.compat.groups.group import GroupMaker
from tests.compat.groups.offset_clients import Committed, ConfluentOffsets
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

DUMP = "org.apache.kafka.tools.DumpLogSegments"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUPS = "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"


def _dump(java: JavaHost, broker: BrokerProcess) -> str:
    files = sorted(
        str(path)
        for directory in broker.data_dir.glob("__consumer_offsets-*")
        for path in Path(directory).glob("*.log")
    )
    assert files
    answer = java.tool(DUMP, ["--offsets-decoder", "--files", ",".join(files)])
    assert answer["status"] == 0, answer["stderr"]
    output: str = answer["stdout"]
    return output


def test_the_decoder_of_kafka_reads_committed_offsets_from_the_files(
    java: JavaHost, broker: BrokerProcess
) -> None:
    topic, group = create_topic(broker.bootstrap, unique_name("dump")), unique_name("dump-group")
    write_numbered(broker.bootstrap, topic, 1, 9)
    ConfluentOffsets().commit(broker.bootstrap, group, topic, Committed(5, "a note", 0))
    line = next(line for line in _dump(java, broker).splitlines() if group in line)
    key, value = (
        json.loads(found) for found in re.findall(r"(?:key|payload): (\{.*?\})(?= payload|$)", line)
    )
    assert key["data"] == {"group": group, "topic": topic, "partition": 0}
    assert key["type"] == "1"
    assert value["data"]["offset"] == 5
    assert value["data"]["metadata"].rstrip("\0") == "a note"
    assert value["data"]["leaderEpoch"] == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_decoder_of_kafka_reads_groups_from_the_files(
    java: JavaHost, broker: BrokerProcess, make_group: GroupMaker, protocol: str
) -> None:
    group = make_group(f"dump-{protocol}", 2)
    member = group.confluent() if protocol == "classic" else group.confluent_consumer()
    group.wait_balanced(member)
    lines = [line for line in _dump(java, broker).splitlines() if group.name in line]
    kinds = {json.loads(found)["type"] for line in lines for found in re.findall(r"key: (\{.*?\}\})", line)}
    # The types of coordinator records: 2 is a classic group, 3 and 5 to 8 make up one of the new protocol.
    assert kinds == ({"2"} if protocol == "classic" else {"3", "5", "6", "7", "8"})
    for line in lines:
        assert "Error" not in line, line


def documents_in(text: str) -> list[Any]:
    """The formatters put nothing between their JSON documents."""
    decoder, position, found = json.JSONDecoder(), text.find("{"), []
    while 0 <= position < len(text) and text[position] == "{":
        document, position = decoder.raw_decode(text, position)
        found.append(document)
    return found


def test_the_console_consumer_formats_offsets_and_groups(
    java: JavaHost, broker: BrokerProcess, make_group: GroupMaker
) -> None:
    group = make_group("console", 1)
    write_numbered(make_group.bootstrap, group.topic, 1, 5)
    member = group.confluent()
    group.wait_balanced(member)
    group.wait_processed(set(range(5)))
    member.wait_for(lambda: bool(member.told("committed")))

    def read(formatter: str) -> list[Any]:
        words = ["--bootstrap-server", broker.bootstrap, "--topic", "__consumer_offsets", "--from-beginning"]
        words += ["--formatter", formatter, "--timeout-ms", "2500"]
        # The tool subscribes to internal topics only on request.
        words += ["--consumer-property", "exclude.internal.topics=false"]
        answer = java.tool(CONSOLE, words)
        return documents_in(answer["stdout"])

    offsets = [each for each in read(OFFSETS) if each["key"]["data"]["group"] == group.name]
    assert offsets[-1]["value"]["data"]["offset"] == 5
    groups = [each for each in read(GROUPS) if each["key"]["data"].get("group") == group.name]
    value = groups[-1]["value"]["data"]
    assert value["protocolType"] == "consumer"
    assert value["protocol"] == "range"
    assert [each["clientId"] for each in value["members"]] == ["rdkafka"]
