"""Delayed messages with a real client and a real process: at their time, once, through kills."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.harness.millrace import MillraceProcess
from tests.harness.topics import create_topic, unique_name
from tests.integration.conftest import StartMillrace

MILLRACE: Final = str(Path(sys.executable).with_name("millrace"))
DELAYED = {"delayed.delivery.enable": "true"}


def produced(
    broker: MillraceProcess, topic: str, messages: Sequence[tuple[bytes, dict[str, bytes]]]
) -> dict[bytes, int]:
    """The offset that each message was given, by its value."""
    offsets: dict[bytes, int] = {}

    def told(error: object, message: Message) -> None:
        assert error is None, error
        offsets[message.value() or b""] = message.offset() or 0

    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for value, headers in messages:
        producer.produce(topic, value, partition=0, headers=list(headers.items()), on_delivery=told)
    assert producer.flush(60) == 0
    return offsets


def consumed(broker: MillraceProcess, topic: str, count: int, *, patience_s: float = 30.0) -> list[Message]:
    """All messages of the topic, once there are so many, and none came within a second after that."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": unique_name("g"), "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    try:
        ends = time.monotonic() + patience_s
        while len(messages) < count and time.monotonic() < ends:
            messages += consumer.consume(1_000, 0.2)
        messages += consumer.consume(1_000, 1.0)
    finally:
        consumer.close()
    assert all(message.error() is None for message in messages)
    return messages


def test_messages_come_at_their_time_and_can_be_cancelled_and_replaced(start_millrace: StartMillrace) -> None:
    broker = start_millrace({})
    topic = create_topic(broker.bootstrap, unique_name("thinned"), 1, DELAYED)
    began_ms = time.time() * 1000
    at_ms = round(began_ms) + 12_000
    offsets = produced(
        broker,
        topic,
        [
            (b"now", {}),
            (b"later", {"millrace-deliver-at": str(at_ms).encode(), "colour": b"red"}),
            (b"soon", {"millrace-delay-ms": b"8000"}),
            (b"never", {"millrace-delay-ms": b"9000"}),
            (b"old", {"millrace-delay-ms": b"60000"}),
        ],
    )
    assert sorted(offsets.values()) == [0, 1, 2, 3, 4]
    produced(broker, topic, [(b"c", {"millrace-delay-cancel": str(offsets[b"never"]).encode()})])
    produced(
        broker,
        topic,
        [(b"new", {"millrace-delay-ms": b"8500", "millrace-delay-replace": str(offsets[b"old"]).encode()})],
    )
    assert [message.value() for message in consumed(broker, topic, 1, patience_s=0.5)] == [b"now"]
    messages = consumed(broker, topic, 4)
    assert [message.value() for message in messages][:2] == [b"now", b"soon"]
    assert sorted(message.value() or b"" for message in messages) == [b"later", b"new", b"now", b"soon"]
    later = next(message for message in messages if message.value() == b"later")
    assert later.timestamp()[1] == at_ms
    headers = dict(later.headers() or [])
    assert headers["colour"] == b"red"
    assert abs(int(headers["millrace-scheduled-at"] or b"") - began_ms) < 5_000
    assert "millrace-deliver-at" not in headers


def test_the_command_line_lists_cancels_and_replaces(start_millrace: StartMillrace) -> None:
    broker = start_millrace({})
    topic = create_topic(broker.bootstrap, unique_name("thinned"), 1, DELAYED)

    def run(*words: str) -> list[dict[str, Any]]:
        command = [MILLRACE, "delayed", *words, "-b", broker.bootstrap, "--json"]
        answer = subprocess.run(command, capture_output=True, timeout=60, check=True)
        return [json.loads(line) for line in answer.stdout.splitlines()]

    assert run("list") == []
    offsets = produced(
        broker,
        topic,
        [
            (b"far", {"millrace-delay-ms": b"7200000"}),
            (b"near", {"millrace-delay-ms": b"3600000", "colour": b"red"}),
            (b"never", {"millrace-delay-ms": b"1800000"}),
        ],
    )
    ids = {value.decode(): f"{topic}:0:{offset}" for value, offset in offsets.items()}
    assert [each["id"] for each in run("list", "-t", topic)] == [ids["never"], ids["near"], ids["far"]]
    subprocess.run(
        [MILLRACE, "delayed", "cancel", ids["never"], "-b", broker.bootstrap], timeout=60, check=True
    )
    (new,) = run("replace", ids["near"], "--in", "2s")
    assert new["replaces"] == ids["near"]
    (message,) = consumed(broker, topic, 1)
    assert message.value() == b"near"
    assert dict(message.headers() or [])["colour"] == b"red"
    assert [each["id"] for each in run("list")] == [ids["far"]]
    (status,) = run("status", "--metrics-url", f"http://{broker.host}:{broker.http_port}")
    assert (status["delivered"], status["late_p99_at_most_s"] is not None) == (1, True)
    assert status["next_due_ms"] is not None


@pytest.mark.slow
def test_kills_lose_and_repeat_nothing(start_millrace: StartMillrace) -> None:
    broker = start_millrace({"delayed.messages.topic.num.partitions": "2"})
    topic = create_topic(broker.bootstrap, unique_name("thinned"), 1, DELAYED)
    chance = random.Random(7)
    values: list[bytes] = []
    for number in range(8):
        wave = [b"%d-%d" % (number, index) for index in range(500)]
        produced(
            broker,
            topic,
            [(value, {"millrace-delay-ms": b"%d" % chance.randrange(100, 6_000)}) for value in wave],
        )
        values += wave
        time.sleep(chance.uniform(0.0, 0.8))
        broker.kill()
        broker.start()
    messages = consumed(broker, topic, len(values), patience_s=60.0)
    found = [message.value() or b"" for message in messages]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(values)
    # And what is done stays done after an orderly restart.
    broker.stop()
    broker.start()
    assert len(consumed(broker, topic, len(values))) == len(values)
