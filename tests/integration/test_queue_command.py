"""`millrace queue` against a running broker: what waits, what was given up and is brought back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.compat.queues.share_groups import Worker, send, set_group
from tests.conftest import StartBroker
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import create_topic, unique_name

MILLRACE: Final = str(Path(sys.executable).with_name("millrace"))
COUNT: Final = 60


class Queues:
    """Runs `millrace queue`."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.environment = dict(os.environ, MILLRACE_BOOTSTRAP=broker.bootstrap)

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [MILLRACE, *words], capture_output=True, env=self.environment, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        return done.stdout.decode() + done.stderr.decode()

    def json(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([MILLRACE, *words], env=self.environment)


@pytest.fixture(scope="module")
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker({"auto.create.topics.enable": "false"})


@pytest.fixture
def queues(broker: BrokerProcess) -> Queues:
    return Queues(broker)


def given_up(broker: BrokerProcess) -> tuple[str, str, str]:
    """A group with so many dead letters, its topic and theirs."""
    group, topic, letters = unique_name("workers"), unique_name("jobs"), unique_name("dlq.jobs")
    create_topic(broker.bootstrap, topic, 2)
    create_topic(broker.bootstrap, letters, 1, {"errors.deadletterqueue.group.enable": "true"})
    set_group(
        broker,
        group,
        share__auto__offset__reset="earliest",
        errors__deadletterqueue__topic__name=letters,
    )
    for partition in range(2):
        send(broker, topic, *(str(number) for number in range(partition, COUNT, 2)), partition=partition)
    worker = Worker(broker, group, topic)
    worker.say("REJECT", *worker.take(COUNT))
    worker.close()
    return group, topic, letters


def values(queues: Queues, topic: str) -> Counter[str]:
    return Counter(
        json.loads(line)["value"] for line in queues.run("consume", topic, "--json", "-q").splitlines()
    )


def test_a_redrive_that_is_killed_goes_on_and_brings_each_letter_back_once(
    broker: BrokerProcess, queues: Queues
) -> None:
    group, topic, letters = given_up(broker)
    eventually(lambda: sum(values(queues, letters).values()) == COUNT, 20)
    (counted,) = queues.json("queue", "dead-letters", group)
    assert (counted["topic"], counted["cause"], counted["letters"]) == (topic, "rejected", COUNT)
    assert f"{COUNT} dead letters would go" in queues.run("queue", "redrive", group, "--dry-run")
    assert "0 dead letters" in queues.run("queue", "redrive", group, "--cause", "expired")
    slow = queues.start("queue", "redrive", group, "--rate", "10")
    eventually(lambda: sum(values(queues, topic).values()) > COUNT, 20)
    slow.send_signal(signal.SIGKILL)
    slow.wait(30)
    brought = sum(values(queues, topic).values()) - COUNT
    assert 0 < brought < COUNT
    queues.run("queue", "redrive", group)
    assert set(values(queues, topic).values()) == {2}, "each is there once more than before"
    assert "0 dead letters" in queues.run("queue", "redrive", group)
    for line in queues.run("consume", topic, "--json", "-q").splitlines():
        assert not json.loads(line).get("headers"), "nothing is left of what made it a dead letter"


def test_a_queue_is_looked_at_paused_and_purged(broker: BrokerProcess, queues: Queues) -> None:
    group, topic = unique_name("workers"), unique_name("jobs")
    create_topic(broker.bootstrap, topic)
    queues.run("config", "alter", "--group", group, "--set", "share.auto.offset.reset=earliest")
    send(broker, topic, "a", "b", "c")
    worker = Worker(broker, group, topic)
    first, *others = worker.take(3)
    worker.say("ACCEPT", first)
    (row,) = [each for each in queues.json("queue", "list") if each["group"] == group]
    assert (row["depth"], row["members"], row["stopped"]) == (2, 1, None)
    assert row["oldest_age_ms"] >= 0
    assert (row["in_flight"], row["counts"]["accepted"]) == (2, 1)
    queues.run("queue", "pause", group)
    (described,) = queues.json("queue", "describe", group)
    assert described["stopped"] == "paused"
    assert described["settings"]["share.delivery.pause"] == "true"
    assert [each["value"] for each in queues.json("queue", "peek", group)] == ["b", "c"]
    queues.run("queue", "resume", group)
    assert "passed over 2 messages" in queues.run("queue", "purge", group, "--yes"), "with its member"
    assert queues.json("queue", "peek", group) == []
    send(broker, topic, "d")
    for message in others:
        # They are passed over, whatever their worker says of them.
        worker.consumer.acknowledge(message)
    (next_one,) = worker.take(1)
    assert next_one.value() == b"d"
    worker.say("RELEASE", next_one)
    worker.close()
    assert "passed over 1 messages" in queues.run("queue", "purge", group, "--yes"), "without"
    assert "share.delivery.pause" not in queues.json("queue", "describe", group)[0]["settings"]
