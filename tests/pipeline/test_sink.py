"""`df.write` and `writeStream` against a real broker, with Spark around them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.harness.millrace import MillraceProcess
from tests.harness.topics import unique_name
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.sink_support import DEADLINE_S, read_committed, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def write(frame: DataFrame, broker: MillraceProcess, **options: str) -> None:
    named = {name.replace("_", "."): value for name, value in options.items()}
    frame.write.format("millrace").mode("append").options(
        **{"kafka.bootstrap.servers": broker.bootstrap, **named}
    ).save()


def test_everything_of_a_record_arrives(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    rows = [
        (b"k1", b"v1", [("h", b"1"), ("n", None)], 2, 1_700_000_000_123),
        (None, b"", [], 0, 1_700_000_000_456),
        (b"", None, None, 1, 1_700_000_000_789),
    ]
    frame = spark.createDataFrame(
        rows,
        "key binary, value binary, headers array<struct<key:string,value:binary>>, partition int, ms long",
    )
    # Sub-millisecond digits are cut off, as records have none.
    frame = frame.selectExpr("*", "timestamp_micros(ms * 1000 + 999) AS timestamp", f"'{topic}' AS topic")
    write(frame.drop("ms").coalesce(1), broker, compression_type="lz4")

    found = sorted(read_committed(broker.bootstrap, topic, 3))
    assert [tuple(each) for each in found] == [
        (0, None, b"", 1_700_000_000_456, ()),
        (1, b"", None, 1_700_000_000_789, ()),
        (2, b"k1", b"v1", 1_700_000_000_123, (("h", b"1"), ("n", None))),
    ]


def test_keys_go_where_the_clients_send_them(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic
) -> None:
    ours, theirs = make_topic(partitions=7), make_topic(partitions=7)
    keys = [f"key-{number}" for number in range(500)]
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, key=key, value=key)
    assert producer.flush(DEADLINE_S) == 0
    frame = spark.createDataFrame([(key, key) for key in keys], "key string, value string")
    write(frame, broker, topic=ours, delivery="at_least_once")

    found = [
        {each.key: each.partition for each in read_committed(broker.bootstrap, topic, 7)}
        for topic in (ours, theirs)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == len(keys)


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, broker: MillraceProcess, topic: str) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "if(id = 900, raise_error('no more'), cast(id AS string)) AS value"
    )
    with pytest.raises(Exception, match="no more"):
        write(frame, broker, topic=topic)
    assert values_of(broker.bootstrap, topic, 2) == []


def test_a_repeated_write_with_a_name_is_written_once(
    spark: SparkSession, broker: MillraceProcess, topic: str
) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id AS string) AS value")
    for version in ("4", "4", "5"):
        write(frame, broker, topic=topic, txnAppId=f"app-{topic}", txnVersion=version)
    found = values_of(broker.bootstrap, topic, 2)
    assert sorted(found) == sorted([str(number) for number in range(100)] * 2)


def test_mistakes_come_out_of_spark_in_our_words(
    spark: SparkSession, broker: MillraceProcess, topic: str
) -> None:
    frame = spark.range(1).selectExpr("cast(id AS string) AS value")
    with pytest.raises(Exception, match="delivery=often: must be exactly_once or at_least_once"):
        write(frame, broker, topic=topic, delivery="often")
    with pytest.raises(Exception, match="a row wants partition 9 of topic"):
        write(frame.selectExpr("*", "9 AS partition"), broker, topic=topic)
    with pytest.raises(Exception, match="a topic can only be appended to"):
        frame.write.format("millrace").mode("overwrite").option("bootstrap.servers", broker.bootstrap).option(
            "topic", topic
        ).save()


# Streams: every file is an epoch.


def stream(spark: SparkSession, source: Path, checkpoint: Path, **options: str) -> StreamingQuery:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
    writer = lines.writeStream.format("millrace").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def add_file(source: Path, name: str, values: Iterable[str]) -> None:
    source.mkdir(exist_ok=True)
    (source.parent / name).write_text("".join(f"{value}\n" for value in values))
    (source.parent / name).rename(source / name)


def test_a_stream_is_written_exactly_once_through_a_lost_commit(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    for number in range(3):
        add_file(source, f"f{number}.txt", (f"{number}-{row}" for row in range(50)))
    stream(spark, source, checkpoint, **options).awaitTermination()
    expected = sorted(f"{number}-{row}" for number in range(3) for row in range(50))
    assert sorted(values_of(broker.bootstrap, topic, 2)) == expected

    # As if the driver had died after the sink's commit: Spark repeats the epoch.
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
    for each in (commits / str(last), commits / f".{last}.crc"):
        each.unlink(missing_ok=True)
    add_file(source, "f3.txt", ["more"])
    stream(spark, source, checkpoint, **options).awaitTermination()
    assert sorted(values_of(broker.bootstrap, topic, 2)) == sorted([*expected, "more"])


def test_rows_may_name_their_topics(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    even, odd = make_topic(), make_topic()
    source = tmp_path / "in"
    add_file(source, "f.txt", [json.dumps({"n": number}) for number in range(20)])
    lines = spark.readStream.format("text").load(str(source))
    number = "cast(get_json_object(value, '$.n') AS int)"
    rows = lines.selectExpr("value", f"if({number} % 2 = 0, '{even}', '{odd}') AS topic")
    query = (
        rows.writeStream.format("millrace")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for topic, rest in ((even, 0), (odd, 1)):
        found = [json.loads(value)["n"] for value in values_of(broker.bootstrap, topic)]
        assert sorted(found) == [number for number in range(20) if number % 2 == rest]


def test_topics_that_rows_name_and_that_are_missing_are_made(
    spark: SparkSession, broker: MillraceProcess
) -> None:
    first, second = unique_name("made"), unique_name("made")
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "cast(id AS string) AS value", f"if(id % 2 = 0, '{first}', '{second}') AS topic"
    )
    write(frame, broker, topicPartitions="3", topicConfig_retention_ms="3600000")
    for topic, rest in ((first, 0), (second, 1)):
        found = sorted(int(value) for value in values_of(broker.bootstrap, topic, 3))
        assert found == list(range(rest, 100, 2))
