"""The Spark job behind a run: one pass over the records, one shuffle, all measures of all topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from millrace.pipeline.analytics.measurement import (
    BELOW_ONE,
    CLASSES_PER_DOUBLING,
    NEGATIVE,
    Measure,
    Measurement,
)
from millrace.pipeline.analytics.ranges import ReadRange, ending_offsets, starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_GROUPS: Final = (
    ("topic", "partition", "bucket"),
    ("topic", "size_class"),
    ("topic", "latency_class"),
    ("topic", "partition", "key"),
)
_COLUMNS: Final = ("topic", "partition", "bucket", "size_class", "latency_class", "key")
KEY_TEXT_MAX: Final = 80


def measure(
    spark: SparkSession,
    ranges: Sequence[ReadRange],
    *,
    run_ms: int,
    options: Mapping[str, str],
    latency_header: str | None = None,
    top_keys: int = 20,
) -> list[Measurement]:
    """Read the ranges once and measure them. `options` say how brokers are reached."""
    found = [each for one in ranges for each in _range_rows(one, run_ms)]
    wanted = [each for each in ranges if each.messages > 0]
    if not wanted:
        return found
    records = _records(spark, wanted, options, with_headers=latency_header is not None)
    counted = _counted(_facts(records, wanted, latency_header)).persist()
    try:
        found += _time_rows(counted, run_ms)
        found += _class_rows(counted, run_ms, "size_class", Measure.SIZES, Measure.SIZE_MAX, "size_max")
        if latency_header is not None:
            found += _class_rows(
                counted, run_ms, "latency_class", Measure.LATENCIES, Measure.LATENCY_MAX, "latency_max"
            )
        found += _key_rows(counted, run_ms, top_keys)
    finally:
        counted.unpersist()
    return found


def _range_rows(one: ReadRange, run_ms: int) -> Iterator[Measurement]:
    for measure_, offsets in ((Measure.START_OFFSET, one.start), (Measure.END_OFFSET, one.end)):
        for partition, offset in offsets.items():
            yield Measurement(
                run_ms=run_ms,
                topic=one.topic,
                measure=measure_,
                value=float(offset),
                partition=partition,
                label=one.topic_id,
            )
    yield Measurement(run_ms=run_ms, topic=one.topic, measure=Measure.BUCKET_MS, value=float(one.bucket_ms))


def _records(
    spark: SparkSession, ranges: Sequence[ReadRange], options: Mapping[str, str], *, with_headers: bool
) -> DataFrame:
    reader = spark.read.format("millrace").options(**dict(options))
    reader = reader.option("assign", _assignment(ranges))
    reader = reader.option("startingOffsets", starting_offsets(ranges))
    reader = reader.option("endingOffsets", ending_offsets(ranges))
    columns = "topic,partition,timestamp,key,value"
    if with_headers:
        return reader.option("includeHeaders", "true").option("columns", f"{columns},headers").load()
    return reader.option("columns", columns).load()


def _assignment(ranges: Sequence[ReadRange]) -> str:
    import json

    return json.dumps({each.topic: sorted(each.end) for each in ranges})


def _facts(records: DataFrame, ranges: Sequence[ReadRange], latency_header: str | None) -> DataFrame:
    """One row for each record, with what it is counted by; the value itself goes no further."""
    from pyspark.sql import functions as f

    bucket = f.create_map(*[f.lit(item) for each in ranges for item in (each.topic, each.bucket_ms)])
    time_ms = f.unix_millis("timestamp")
    bucket_ms = bucket[f.col("topic")]
    facts = records.select(
        "topic",
        "partition",
        (f.floor(time_ms / bucket_ms) * bucket_ms).alias("bucket"),
        "key",
        (f.coalesce(f.octet_length("key"), f.lit(0)) + f.coalesce(f.octet_length("value"), f.lit(0))).alias(
            "size"
        ),
        (f.lit(None).cast("double") if latency_header is None else time_ms - _sent_ms(latency_header)).alias(
            "latency"
        ),
    )
    return facts.withColumn("size_class", _class_of("size")).withColumn("latency_class", _class_of("latency"))


def _sent_ms(header: str) -> Any:
    """The header's moment in ms: a number of s, ms, µs or ns since 1970 as text, or a time as in ISO 8601."""
    from pyspark.sql import functions as f

    values = f.filter("headers", lambda each: each["key"] == header)
    # A cast takes any bytes; decoding would end the job at a header that is no text.
    text = f.trim(f.try_element_at(values, f.lit(-1))["value"].cast("string"))
    number = text.try_cast("double")
    # Seconds have 10 digits until the year 2286; each of the finer units has three more.
    scaled = (
        f.when(number < 1e11, number * 1e3)
        .when(number < 1e14, number)
        .when(number < 1e17, number / 1e3)
        .otherwise(number / 1e6)
    )
    written = f.unix_millis(f.try_to_timestamp(text)).cast("double")
    return f.when(number.isNotNull(), scaled).otherwise(written)


def _class_of(column: str) -> Any:
    """`measurement.class_of` for Spark; null stays null."""
    from pyspark.sql import functions as f

    value = f.col(column)
    return (
        f.when(value < 0, f.lit(NEGATIVE))
        .when(value < 1, f.lit(BELOW_ONE))
        .otherwise(f.floor(f.log2(value) * CLASSES_PER_DOUBLING).cast("int"))
    )


def _counted(facts: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    groups = [[f.col(name) for name in group] for group in _GROUPS]
    return facts.groupingSets(groups, *[f.col(name) for name in _COLUMNS]).agg(
        f.count(f.lit(1)).alias("messages"),
        f.sum("size").alias("bytes"),
        f.max("size").alias("size_max"),
        f.max("latency").alias("latency_max"),
        *[f.grouping(name).alias(f"no_{name}") for name in _COLUMNS[2:]],
    )


def _time_rows(counted: DataFrame, run_ms: int) -> Iterator[Measurement]:
    for row in counted.where("no_bucket = 0").collect():
        for measure_ in (Measure.MESSAGES, Measure.BYTES):
            yield Measurement(
                run_ms=run_ms,
                topic=row["topic"],
                measure=measure_,
                value=float(row[measure_.value]),
                partition=row["partition"],
                time_ms=int(row["bucket"]),
            )


def _class_rows(
    counted: DataFrame, run_ms: int, column: str, measure_: Measure, most: Measure, most_column: str
) -> list[Measurement]:
    rows = counted.where(f"no_{column} = 0 AND {column} IS NOT NULL").collect()
    found = [
        Measurement(
            run_ms=run_ms,
            topic=row["topic"],
            measure=measure_,
            value=float(row["messages"]),
            label=str(row[column]),
        )
        for row in rows
    ]
    largest: dict[str, float] = {}
    for row in rows:
        largest[row["topic"]] = max(largest.get(row["topic"], float("-inf")), float(row[most_column]))
    return found + [
        Measurement(run_ms=run_ms, topic=topic, measure=most, value=value) for topic, value in largest.items()
    ]


def _key_rows(counted: DataFrame, run_ms: int, top_keys: int) -> list[Measurement]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = counted.where("no_key = 0")
    totals = keys.groupBy("topic").agg(
        f.countDistinct("key").alias("keys"), f.sum(f.expr("if(key IS NULL, messages, 0)")).alias("null_keys")
    )
    found = [
        Measurement(run_ms=run_ms, topic=row["topic"], measure=measure_, value=float(row[measure_.value]))
        for row in totals.collect()
        for measure_ in (Measure.KEYS, Measure.NULL_KEYS)
    ]
    by_messages = Window.partitionBy("topic").orderBy(f.desc("messages"), "key")
    most = keys.where("key IS NOT NULL").withColumn("rank", f.row_number().over(by_messages))
    for row in most.where(f.col("rank") <= top_keys).collect():
        found += _one_key(row, run_ms)
    return found


def _one_key(row: Row, run_ms: int) -> Iterator[Measurement]:
    for measure_, column in ((Measure.KEY_MESSAGES, "messages"), (Measure.KEY_BYTES, "bytes")):
        yield Measurement(
            run_ms=run_ms,
            topic=row["topic"],
            measure=measure_,
            value=float(row[column]),
            partition=row["partition"],
            label=key_text(bytes(row["key"])),
        )


def key_text(key: bytes) -> str:
    """A key as people can read it; bytes that are no text as hexadecimal digits."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (key and not text):
        text = f"0x{key.hex()}"
    return text if len(text) <= KEY_TEXT_MAX else f"{text[: KEY_TEXT_MAX - 1]}…"
