"""Kafka's own share consumers: the Java client, and on the command line console, verifiable, measuring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pytest

from tests.compat.queues.share_groups import send, set_group
from tests.conftest import StartBroker
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess
from tests.harness.topics import create_topic, unique_name

pytestmark = [pytest.mark.java, pytest.mark.slow]

CONSOLE: Final = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE: Final = "org.apache.kafka.tools.VerifiableShareConsumer"
PERFORMANCE: Final = "org.apache.kafka.tools.ShareConsumerPerformance"
VALUES: Final = [f"value-{number}" for number in range(20)]


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker({"auto.create.topics.enable": "false"})


class Tools:
    """A group with twenty records before it, and the tools that read them."""

    def __init__(self, java: JavaHost, broker: BrokerProcess) -> None:
        self.group, self.topic = unique_name("workers"), unique_name("jobs")
        self._java = java
        self._bootstrap = broker.bootstrap
        set_group(broker, self.group, share__auto__offset__reset="earliest")
        create_topic(broker.bootstrap, self.topic)
        send(broker, self.topic, *VALUES)

    def run(self, main: str, *words: str) -> str:
        first = ["--bootstrap-server", self._bootstrap, "--topic", self.topic]
        answer = self._java.tool(main, [*first, *words])
        assert not answer["thrown"], answer
        return str(answer["stdout"])

    def console(self, *words: str, count: int = len(VALUES)) -> Sequence[str]:
        read = self.run(CONSOLE, "--group", self.group, "--max-messages", str(count), *words)
        return read.splitlines()


@pytest.fixture
def tools(java: JavaHost, broker: BrokerProcess) -> Tools:
    return Tools(java, broker)


def test_the_console_consumer_accepts_what_it_prints(tools: Tools) -> None:
    assert tools.console(count=5) == VALUES[:5]
    assert sorted(tools.console(count=15)) == sorted(VALUES[5:])
    assert tools.console("--timeout-ms", "2000", count=1) == []


def test_the_console_consumer_can_reject(tools: Tools) -> None:
    assert tools.console("--reject") == VALUES
    assert tools.console("--timeout-ms", "2000", count=1) == []


def test_the_verifiable_consumer_is_told_that_each_acknowledgement_counts(tools: Tools) -> None:
    words = ["--group-id", tools.group, "--max-messages", str(len(VALUES)), "--verbose"]
    events = [json.loads(line) for line in tools.run(VERIFIABLE, *words).splitlines() if line[:1] == "{"]
    by_name = {event["name"]: event for event in events}
    assert set(by_name) >= {"startup_complete", "records_consumed", "offsets_acknowledged"}
    acknowledged = [
        offset
        for event in events
        if event["name"] == "offsets_acknowledged"
        for partition in event["partitions"]
        for offset in partition["offsets"]
    ]
    assert all(event["success"] for event in events if event["name"] == "offsets_acknowledged"), events
    assert sorted(acknowledged) == list(range(len(VALUES)))
    assert tools.console("--timeout-ms", "2000", count=1) == []


def test_the_measuring_consumer_reads_all(tools: Tools) -> None:
    count = str(len(VALUES))
    printed = tools.run(PERFORMANCE, "--group", tools.group, "--num-records", count, "--timeout", "20000")
    head, numbers = [line for line in printed.splitlines() if "," in line][:2]
    columns = dict(zip(map(str.strip, head.split(",")), map(str.strip, numbers.split(",")), strict=True))
    assert columns["data.consumed.in.nMsg"] == count, printed


@pytest.mark.parametrize("mode", ["batch_optimized", "record_limit"])
def test_the_java_client_is_given_again_what_it_releases(
    java: JavaHost, broker: BrokerProcess, tools: Tools, mode: str
) -> None:
    set_group(broker, tools.group, share__delivery__count__limit="2")
    command = {
        "op": "share",
        "config": {
            "bootstrap.servers": broker.bootstrap,
            "group.id": tools.group,
            "share.acknowledgement.mode": "explicit",
            "share.acquire.mode": mode,
            "max.poll.records": "7",
        },
        "topic": tools.topic,
        "say": {"value-3": ["RELEASE", "RELEASE"], "value-4": ["REJECT"], "value-5": ["RELEASE"]},
        "count": len(VALUES) + 2,
        "timeout_ms": 30_000,
    }
    answer = java.call(command)
    assert "error" not in answer, answer
    assert answer["errors"] == []
    again = [(value, number) for value, number, _ in answer["deliveries"] if number > 1]
    assert sorted(again) == [("value-3", 2), ("value-5", 2)]
    assert sorted(value for value, number, _ in answer["deliveries"] if number == 1) == sorted(VALUES)
    # What was released as often as it may be is given up.
    assert tools.console("--timeout-ms", "2000", count=1) == []
