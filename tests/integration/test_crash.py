"""kill -9 under load (F19): what was acknowledged is there, in order, once."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

import pytest

from tests.compat.clients import ConfluentClient
from tests.harness.millrace import MillraceProcess
from tests.harness.protocol import end_offset
from tests.harness.raw import RawConnection
from tests.harness.topics import admin_client, create_topic, unique_name
from tests.harness.writer import NumberedWriter, number_in
from tests.integration.conftest import StartMillrace

PRODUCERS = 3
COMPRESSIONS = ("none", "lz4", "zstd")


def writers_to(broker: MillraceProcess, topic: str, count: int) -> list[NumberedWriter]:
    """One for each partition: much data, in each compression."""
    return [
        NumberedWriter(
            broker.bootstrap,
            topic,
            partition,
            padding_max=2_000,
            config={
                "queue.buffering.max.messages": 2_000,
                "compression.type": COMPRESSIONS[partition % len(COMPRESSIONS)],
            },
        )
        for partition in range(count)
    ]


def check(broker: MillraceProcess, topic: str, writers: list[NumberedWriter]) -> None:
    with RawConnection((broker.host, broker.port)) as connection:
        ends = {partition: end_offset(connection, topic, partition) for partition in range(len(writers))}
    received = ConfluentClient().read(
        broker.bootstrap, {(topic, partition): (0, end) for partition, end in ends.items()}
    )
    for partition, writer in enumerate(writers):
        mine = {
            message.offset: number_in(message.value, topic, partition)
            for message in received
            if message.partition == partition
        }
        assert list(mine) == list(range(ends[partition]))
        assert not writer.failures, writer.failures[:5]
        # Once and in order: the numbers are the offsets. And all of them: every one was acknowledged.
        assert list(mine.values()) == list(range(writer.written))
        assert writer.acknowledged == mine


@pytest.mark.slow
@pytest.mark.parametrize("kills", [15, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_kills_under_load_lose_and_repeat_nothing(start_millrace: StartMillrace, kills: int) -> None:
    broker = start_millrace({"log.flush.offset.checkpoint.interval.ms": "2000"})
    configs = {"segment.bytes": str(1 << 20)}
    topic = create_topic(broker.bootstrap, unique_name("killed"), PRODUCERS, configs)
    writers = writers_to(broker, topic, PRODUCERS)
    source = random.Random(50)
    with ExitStack() as writing:
        for writer in writers:
            writing.enter_context(writer)
        for number in range(kills):
            # Most kills meet a broker that is at work again, some one that has hardly begun.
            if number % 5:
                for writer in writers:
                    writer.wait_for_more(1)
            time.sleep(source.uniform(0.0, 0.3))
            broker.kill()
            broker.start()
    assert min(writer.written for writer in writers) > kills * 10
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
    writers = writers_to(broker, topic, 2)
    source = random.Random(6)
    with ExitStack() as writing:
        for writer in writers:
            writing.enter_context(writer)
        for _ in range(6):
            time.sleep(source.uniform(0.2, 0.6))
            broker.kill()
            broker.start()
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
    topics = admin_client(broker.bootstrap).list_topics(timeout=60).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _delete(broker: MillraceProcess, name: str) -> None:
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([name])[name].result(15)
