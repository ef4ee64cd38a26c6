"""The source's client and decoder against confluent-kafka: the same topics must hold the same records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from millrace.client.broker_client import EARLIEST, BrokerClient
from millrace.client.errors import ConnectionFailed
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import DataLost
from millrace.pipeline.records.decoder import RowFilter
from millrace.pipeline.records.row_schema import COLUMN_TYPES
from millrace.pipeline.source.options import read_options
from millrace.pipeline.source.partition_reader import PartitionReader
from millrace.pipeline.source.planning import Range
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually, free_port
from tests.harness.topics import admin_client, create_topic, unique_name
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.source_clients import by_client, by_source, producer, send, send_generated


def read(bootstrap: str, topic: str, **options: str) -> list[dict[str, Any]]:
    """All of partition 0 through the source's own client, without Spark."""
    given = read_options({"bootstrap.servers": bootstrap, "subscribe": topic, **options}, streaming=False)
    asked = TopicPartition(topic, 0)
    with given.client() as client:
        topic_id = client.metadata([topic])[topic].topic_id
        start = client.list_offsets({asked: EARLIEST})[asked].offset
        end = client.list_offsets({asked: -1}, given.isolation)[asked].offset
    wanted = Range(topic_id=topic_id, partition=asked, start=start, end=end)
    reader = PartitionReader(given, wanted, tuple(COLUMN_TYPES), RowFilter(offset_from=start, offset_to=end))
    return [row for batch in reader.read() for row in batch.to_pylist()]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_generated_records_of_every_codec(broker: MillraceProcess, make_topic: MakeTopic, codec: str) -> None:
    topic = make_topic(stem=f"codec-{codec}")
    client = producer(broker.bootstrap, compression_type=codec, batch_num_messages=300)
    send_generated(client, topic, 1_500, random.Random(codec))
    found = by_source(read(broker.bootstrap, topic, **{"fetch.max.bytes": "200000"}))
    assert len(found) == 1_500
    assert found == by_client(broker.bootstrap, topic)


def test_the_brokers_own_timestamps(broker: MillraceProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(stem="append-time", configs={"message.timestamp.type": "LogAppendTime"})
    send_generated(producer(broker.bootstrap), topic, 100, random.Random(1))
    found = by_source(read(broker.bootstrap, topic))
    assert {message.timestamp_type for message in found} == {1}
    assert found == by_client(broker.bootstrap, topic)


def test_transactions_committed_and_aborted_side_by_side(
    broker: MillraceProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(stem="transactions")
    rng = random.Random(4)
    writers = [
        producer(
            broker.bootstrap,
            transactional_id=unique_name("source"),
            transaction_timeout_ms=600_000,
            compression_type=codec,
        )
        for codec in ("none", "zstd")
    ]
    for writer in writers:
        writer.init_transactions(60)
    for turn in range(12):
        for writer in writers:
            writer.begin_transaction()
            send_generated(writer, topic, 20, rng)
        send_generated(producer(broker.bootstrap), topic, 5, rng)
        for place, writer in enumerate(writers):
            if (turn + place) % 3 == 0:
                writer.abort_transaction(60)
            else:
                writer.commit_transaction(60)
    found = by_source(read(broker.bootstrap, topic, **{"fetch.max.bytes": "60000"}))
    assert found == by_client(broker.bootstrap, topic)
    assert len(found) == 12 * 5 + 24 * 20 - 8 * 20
    everything = read(broker.bootstrap, topic, **{"isolation.level": "read_uncommitted"})
    assert len(everything) == 12 * 5 + 24 * 20


@pytest.fixture(scope="module")
def cleaning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MillraceProcess]:
    process = MillraceProcess(
        tmp_path_factory.mktemp("cleaning"),
        {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"},
    )
    process.start()
    yield process
    process.end()


def test_gaps_that_compaction_left(cleaning_broker: MillraceProcess) -> None:
    bootstrap = cleaning_broker.bootstrap
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": str(1 << 20),
        "delete.retention.ms": "3600000",
    }
    topic = create_topic(bootstrap, unique_name("compacted"), configs=configs)
    rng = random.Random(9)
    for turn in range(6):
        client = producer(bootstrap, compression_type=("none", "zstd")[turn % 2])
        for number in range(300):
            value = None if rng.random() < 0.05 else rng.randbytes(800)
            client.produce(
                topic, key=b"%d" % rng.randrange(120), value=value, headers=[("n", b"%d" % number)]
            )
        assert client.flush(60) == 0
    # The active segment is never cleaned: fill it, so that another one begins.
    send(bootstrap, topic, [bytes(300_000)] * 8)
    eventually(lambda: len(by_client(bootstrap, topic)) < 900, deadline_s=120)
    # The cleaner may be at work still: both must see the same state.
    eventually(lambda: by_source(read(bootstrap, topic)) == by_client(bootstrap, topic), deadline_s=120)
    offsets = [row["offset"] for row in read(bootstrap, topic)]
    assert offsets == sorted(offsets)
    assert any(after - before > 1 for before, after in pairwise(offsets))


def test_a_broker_that_is_killed_while_it_is_read(cleaning_broker: MillraceProcess) -> None:
    """A worker goes on at the record where it was: none is missing, none is there twice."""
    broker = cleaning_broker
    # The records are old, and this broker looks for what it may delete.
    configs = {"retention.ms": "-1"}
    topic = create_topic(broker.bootstrap, unique_name("interrupted"), configs=configs)
    send(broker.bootstrap, topic, [b"%d" % number for number in range(5_000)], batch_num_messages=50)
    given = read_options(
        {"bootstrap.servers": broker.bootstrap, "subscribe": topic, "fetch.max.bytes": "4096"},
        streaming=False,
    )
    with given.client() as client:
        topic_id = client.metadata([topic])[topic].topic_id
    wanted = Range(topic_id=topic_id, partition=TopicPartition(topic, 0), start=0, end=5_000)
    batches = PartitionReader(given, wanted, ("value",), RowFilter(offset_to=5_000)).read()
    values = next(batches).column("value").to_pylist()
    broker.kill()
    broker.start()
    for batch in batches:
        values += batch.column("value").to_pylist()
    assert values == [b"%d" % number for number in range(5_000)]


def test_deleted_records_are_noticed(broker: MillraceProcess, make_topic: MakeTopic) -> None:
    from confluent_kafka import TopicPartition as ClientPartition

    topic = make_topic(stem="shortened")
    send(broker.bootstrap, topic, [b"%d" % number for number in range(100)])
    admin = admin_client(broker.bootstrap)
    for outcome in admin.delete_records([ClientPartition(topic, 0, 40)]).values():
        outcome.result(30)
    asked = TopicPartition(topic, 0)

    def rows(**options: str) -> list[int]:
        given = read_options(
            {"bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}, streaming=False
        )
        with given.client() as client:
            topic_id = client.metadata([topic])[topic].topic_id
        wanted = Range(topic_id=topic_id, partition=asked, start=10, end=60)
        reader = PartitionReader(given, wanted, ("offset",), RowFilter(offset_from=10, offset_to=60))
        return [row["offset"] for batch in reader.read() for row in batch.to_pylist()]

    with pytest.raises(DataLost, match="offsets 10 to 39 are gone, its log starts at 40"):
        rows()
    assert rows(failOnDataLoss="false") == list(range(40, 60))


def test_a_group_without_members_keeps_offsets(broker: MillraceProcess, topic: str) -> None:
    group = unique_name("kept")
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with BrokerClient(broker.bootstrap) as client:
        assert client.committed(group, partitions) == {}
        client.commit(group, {partitions[0]: 5})
        assert client.committed(group, partitions) == {partitions[0]: 5}


def test_a_broker_that_is_not_there_is_named() -> None:
    port = free_port()
    with (
        BrokerClient(f"127.0.0.1:{port}", timeout_ms=300) as client,
        pytest.raises(ConnectionFailed, match=f"no broker answers at 127.0.0.1:{port}"),
    ):
        client.metadata()
