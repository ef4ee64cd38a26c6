"""kill -9 under load (F19): what was acknowledged is there, in order, once."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import confluent_kafka
import pytest

from tests.compat.clients import ConfluentClient
from tests.compat.messages import Received
from tests.harness.millrace import MillraceProcess
from tests.harness.protocol import end_offset
from tests.harness.raw import RawConnection
from tests.harness.topics import admin_client, create_topic, unique_name
from tests.integration.conftest import StartMillrace

KILLS = 50
PRODUCERS = 3


class NumberedWriter:
    """An idempotent producer that writes 0, 1, 2, ... to one partition until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{partition}")
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "queue.buffering.max.messages": 2_000,
                "compression.type": ("none", "lz4", "zstd")[partition % 3],
                "log_level": 0,
            }
        )
        self.written = 0
        self.acknowledged: dict[int, int] = {}
        """Number by offset."""
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self._producer.flush(60) == 0, "messages are still on their way after a minute"

    def _run(self) -> None:
        source = random.Random(self._partition)
        while not self._stopping.is_set():
            try:
                self._send(self.written, bytes(source.randrange(20, 2_000)))
                self.written += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            # Enough for the load to be continuous, little enough for the disk.
            time.sleep(0.0005)

    def _send(self, number: int, padding: bytes) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(str(error))
            else:
                self.acknowledged[message.offset()] = number

        value = f"{self._topic} {self._partition} {number} ".encode() + padding
        self._producer.produce(self._topic, value, partition=self._partition, on_delivery=delivered)


def number_of(message: Received) -> int:
    assert message.value is not None
    topic, partition, number, _ = message.value.split(b" ", 3)
    # F30: never a record of another topic or partition.
    assert (topic.decode(), int(partition)) == (message.topic, message.partition)
    return int(number)


def check(broker: MillraceProcess, topic: str, writers: list[NumberedWriter]) -> None:
    with RawConnection((broker.host, broker.port)) as connection:
        ends = {partition: end_offset(connection, topic, partition) for partition in range(len(writers))}
    received = ConfluentClient().read(
        broker.bootstrap, {(topic, partition): (0, end) for partition, end in ends.items()}
    )
    for partition, writer in enumerate(writers):
        mine = {message.offset: number_of(message) for message in received if message.partition == partition}
        assert list(mine) == list(range(ends[partition]))
        assert not writer.failures, writer.failures[:5]
        # Once and in order: the numbers are the offsets. And all of them: every one was acknowledged.
        assert list(mine.values()) == list(range(writer.written))
        assert writer.acknowledged == mine


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_fifty_kills_under_load_lose_and_repeat_nothing(start_millrace: StartMillrace) -> None:
    broker = start_millrace({"log.flush.offset.checkpoint.interval.ms": "2000"})
    configs = {"segment.bytes": str(1 << 20)}
    topic = create_topic(broker.bootstrap, unique_name("killed"), PRODUCERS, configs)
    writers = [NumberedWriter(broker.bootstrap, topic, partition) for partition in range(PRODUCERS)]
    for writer in writers:
        writer.start()
    source = random.Random(50)
    try:
        for _ in range(KILLS):
            time.sleep(source.uniform(0.05, 0.6))
            broker.kill()
            broker.start()
    finally:
        for writer in writers:
            writer.stop()
    assert min(writer.written for writer in writers) > KILLS * 10
    check(broker, topic, writers)
    # And the same after an orderly restart.
    assert broker.stop() == 0
    broker.start()
    check(broker, topic, writers)


@pytest.mark.slow
def test_group_commit_survives_kills_too(start_millrace: StartMillrace) -> None:
    broker = start_millrace()
    configs = {"flush.messages": "1", "segment.bytes": str(1 << 20)}
    topic = create_topic(broker.bootstrap, unique_name("flushed"), 2, configs)
    writers = [NumberedWriter(broker.bootstrap, topic, partition) for partition in range(2)]
    for writer in writers:
        writer.start()
    source = random.Random(6)
    try:
        for _ in range(6):
            time.sleep(source.uniform(0.2, 0.6))
            broker.kill()
            broker.start()
    finally:
        for writer in writers:
            writer.stop()
    check(broker, topic, writers)


@pytest.mark.slow
def test_topics_and_settings_survive_kills(start_millrace: StartMillrace) -> None:
    # What the broker has confirmed about the cluster must be as durable as messages.
    broker = start_millrace()
    alive: dict[str, int] = {}
    source = random.Random(9)
    for turn in range(8):
        for _ in range(3):
            name = unique_name(f"meta-{turn}")
            partitions = source.randrange(1, 4)
            create_topic(broker.bootstrap, name, partitions)
            alive[name] = partitions
        doomed = source.choice(list(alive))
        _delete(broker, doomed)
        del alive[doomed]
        broker.kill()
        broker.start()
        listed = _topics(broker)
        assert listed == alive


def _topics(broker: MillraceProcess) -> dict[str, int]:
    topics = admin_client(broker.bootstrap).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _delete(broker: MillraceProcess, name: str) -> None:
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([name])[name].result(15)
