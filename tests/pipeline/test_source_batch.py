"""`spark.read.format("millrace")` with a real Spark against a real broker."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.harness.millrace import MillraceProcess
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.source_clients import NOW_MS, by_client, by_source, producer, send, send_generated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def load(spark: SparkSession, broker: MillraceProcess, topic: str, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    return spark.read.format("millrace").options(**given).load()


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


def test_a_topic_is_a_table(spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3, stem="table")
    client = producer(broker.bootstrap, compression_type="lz4")
    send_generated(client, topic, 3_000, random.Random(1), partitions=3)
    frame = load(spark, broker, topic, includeHeaders="true", minPartitions="7")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert frame.rdd.getNumPartitions() >= 7
    rows: list[dict[str, Any]] = []
    for row in frame.collect():
        plain = row.asDict(recursive=True)
        assert plain["topic"] == topic
        rows.append(_bytes(plain))
    assert by_source(rows) == by_client(broker.bootstrap, topic, 3)


def _bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Spark may hand binary columns out as bytearrays, and moments without a zone as local ones."""

    def plain(value: Any) -> Any:
        return bytes(value) if isinstance(value, bytearray) else value

    headers = [{name: plain(value) for name, value in header.items()} for header in row["headers"] or ()]
    return {name: plain(value) for name, value in row.items()} | {"headers": headers}


def test_bounds_columns_and_filters(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2, stem="bounds")
    for partition in (0, 1):
        send(broker.bootstrap, topic, [b"%d" % number for number in range(100)], partition)
    starting = json.dumps({topic: {"0": 90, "1": -2}})
    ending = json.dumps({topic: {"0": -1, "1": 5}})
    frame = load(spark, broker, topic, startingOffsets=starting, endingOffsets=ending)
    assert offsets(frame) == [(0, number) for number in range(90, 100)] + [(1, n) for n in range(5)]

    by_time = load(spark, broker, topic, startingTimestamp=str(NOW_MS + 98), columns="partition,offset")
    assert by_time.columns == ["partition", "offset"]
    assert offsets(by_time) == [(0, 98), (0, 99), (1, 98), (1, 99)]

    table = load(spark, broker, topic)
    moment = f"timestamp_millis({NOW_MS + 7})"
    assert offsets(table.where("partition = 1 and offset >= 3 and offset < 6")) == [(1, 3), (1, 4), (1, 5)]
    assert offsets(table.where(f"timestamp < {moment} and offset > 4")) == [(0, 5), (0, 6), (1, 5), (1, 6)]
    assert offsets(table.where("topic = 'other'")) == []
    chosen = table.where("value = '42' and partition in (0, 3)")
    assert [bytes(row["value"]) for row in chosen.collect()] == [b"42"]


def test_filters_reach_the_source(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=4, stem="pushed")
    for partition in range(4):
        send(broker.bootstrap, topic, [b"x"] * 10, partition)
    frame = load(spark, broker, topic).where("partition = 2 and offset < 5")
    assert frame.rdd.getNumPartitions() == 1
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan.replace("RuntimeFilters", ""), plan


@pytest.mark.parametrize(
    "options, message",
    [
        ({"startingOfsets": "earliest"}, "unknown option startingofsets: did you mean startingOffsets?"),
        ({"subscribe": "nowhere"}, "no such topic: nowhere"),
        ({"endingOffsets": '{"TOPIC": {"0": 5}}'}, "is behind its end, 0"),
        ({"startingOffsets": '{"other": {"0": 5}}'}, "says nothing about"),
    ],
)
def test_mistakes_come_out_of_spark(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, options: dict[str, str], message: str
) -> None:
    topic = make_topic(stem="mistakes")
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(PySparkException) as caught:
        load(spark, broker, topic, **given).collect()
    assert message in str(caught.value)
