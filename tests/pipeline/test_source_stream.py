"""`spark.readStream.format("millrace")` with a real Spark against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from millrace.client.broker_client import BrokerClient
from millrace.core.ids import TopicPartition
from tests.harness.millrace import MillraceProcess
from tests.harness.topics import admin_client, create_topic, unique_name
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.source_clients import producer, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


class Collected:
    """What batches of a query brought, by their numbers: a batch that comes again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [(row["partition"], row["offset"]) for row in frame.collect()]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return sorted(place for batch in self.batches.values() for place in batch)


def run(
    spark: SparkSession,
    broker: MillraceProcess,
    checkpoint: Path,
    collected: Collected,
    **options: str,
) -> list[Any]:
    """Read all there is now and end; the progress of every batch."""
    given = {"bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest", **options}
    query = (
        spark.readStream.format("millrace")
        .options(**given)
        .option("columns", "partition,offset,value")
        .load()
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return [json.loads(progress.json) for progress in query.recentProgress]


def everything(count: int, *partitions: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in partitions for offset in range(count)]


def test_a_stream_goes_on_where_it_ended(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(partitions=2, stem="stream")
    group = unique_name("progress")
    collected = Collected()
    for partition in (0, 1):
        send(broker.bootstrap, topic, [b"x"] * 100, partition)
    run(spark, broker, tmp_path, collected, subscribe=topic, maxOffsetsPerTrigger="60", commitGroup=group)
    assert collected.offsets == everything(100, 0, 1)
    assert all(len(batch) <= 62 for batch in collected.batches.values())
    assert len(collected.batches) >= 4
    with BrokerClient(broker.bootstrap) as client:
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert client.committed(group, partitions) == dict.fromkeys(partitions, 100)

    # A transaction that is not decided yet holds the stream back, an aborted one is left out.
    # A slow machine must not make the broker decide it.
    undecided = producer(
        broker.bootstrap, transactional_id=unique_name("stream"), transaction_timeout_ms=600_000
    )
    undecided.init_transactions(60)
    undecided.begin_transaction()
    send(broker.bootstrap, topic, [b"y"] * 5, 0)
    undecided.produce(topic, b"never", partition=1)
    assert undecided.flush(60) == 0
    send(broker.bootstrap, topic, [b"y"] * 5, 1)
    run(spark, broker, tmp_path, collected, subscribe=topic)
    assert collected.offsets == everything(105, 0) + everything(100, 1)
    undecided.abort_transaction(60)
    run(spark, broker, tmp_path, collected, subscribe=topic)
    # The aborted record and its marker have offsets of their own.
    assert collected.offsets == everything(105, 0) + everything(100, 1) + [(1, n) for n in range(101, 106)]


def test_bytes_of_a_batch_are_limited_and_the_lag_is_told(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(stem="bytes")
    send(broker.bootstrap, topic, [bytes(1_000)] * 300, batch_num_messages=10)
    collected = Collected()
    progress = run(spark, broker, tmp_path, collected, subscribe=topic, maxBytesPerTrigger="100000")
    assert collected.offsets == everything(300, 0)
    assert 3 <= len(collected.batches) <= 6
    (source,) = progress[0]["sources"]
    end, latest = (
        _plain(source[name])[topic]["partitions"]["0"]["offset"] for name in ("endOffset", "latestOffset")
    )
    assert end < latest == 300


def _plain(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


def test_new_partitions_and_topics_are_read_from_their_beginning(
    spark: SparkSession, broker: MillraceProcess, tmp_path: Path
) -> None:
    from confluent_kafka.admin import NewPartitions

    stem = unique_name("growing")
    first = create_topic(broker.bootstrap, f"{stem}-a")
    send(broker.bootstrap, first, [b"x"] * 3)
    collected = Collected()
    run(spark, broker, tmp_path, collected, subscribePattern=f"{stem}-.*")
    admin = admin_client(broker.bootstrap)
    admin.create_partitions([NewPartitions(first, 2)])[first].result(30)
    second = create_topic(broker.bootstrap, f"{stem}-b")
    send(broker.bootstrap, first, [b"x"] * 4, 1)
    send(broker.bootstrap, second, [b"x"] * 2)
    run(spark, broker, tmp_path, collected, subscribePattern=f"{stem}-.*")
    assert collected.offsets == sorted([*everything(3, 0), *everything(4, 1), *everything(2, 0)])


def test_a_topic_made_anew_under_its_name_is_noticed(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(stem="recreated")
    send(broker.bootstrap, topic, [b"old"] * 10)
    collected = Collected()
    run(spark, broker, tmp_path, collected, subscribe=topic)
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([topic])[topic].result(30)
    create_topic(broker.bootstrap, topic)
    # More than before: by offsets alone nobody would notice.
    send(broker.bootstrap, topic, [b"new"] * 20)
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        run(spark, broker, tmp_path, collected, subscribe=topic)
    run(spark, broker, tmp_path, collected, subscribe=topic, failOnDataLoss="false")
    assert collected.offsets == sorted(everything(10, 0) + everything(20, 0))


def test_records_that_were_deleted_before_they_were_read(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition as ClientPartition

    topic = make_topic(stem="lost")
    send(broker.bootstrap, topic, [b"x"] * 10)
    collected = Collected()
    run(spark, broker, tmp_path, collected, subscribe=topic)
    send(broker.bootstrap, topic, [b"x"] * 10)
    admin = admin_client(broker.bootstrap)
    for outcome in admin.delete_records([ClientPartition(topic, 0, 15)]).values():
        outcome.result(30)
    with pytest.raises(StreamingQueryException, match="offsets 10 to 14 are gone"):
        run(spark, broker, tmp_path, collected, subscribe=topic)
    run(spark, broker, tmp_path, collected, subscribe=topic, failOnDataLoss="false")
    assert collected.offsets == [(0, n) for n in range(10)] + [(0, n) for n in range(15, 20)]
