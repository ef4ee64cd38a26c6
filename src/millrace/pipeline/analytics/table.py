"""The Delta table of measurements: each run is one commit, and so there as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millrace.pipeline.analytics.measurement import Measure, Measurement
from millrace.pipeline.analytics.ranges import LastEnd

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row, SparkSession

_US: Final = 1000
"""Microseconds in a millisecond: Spark's timestamps count the former."""


def append(spark: SparkSession, path: str, measurements: Sequence[Measurement]) -> None:
    """Add the measurements of one run, or of a part of a run that watches for long."""
    if measurements:
        frame = spark.createDataFrame(_as_arrow(measurements)).coalesce(1)
        frame.write.format("delta").mode("append").save(path)


def exists(spark: SparkSession, path: str) -> bool:
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"{path}/_delta_log")  # type: ignore[union-attr]
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    return bool(hadoop.getFileSystem(configuration).exists(hadoop))


def read(spark: SparkSession, path: str, topics: Iterable[str]) -> list[Measurement]:
    """All runs about these topics, oldest first."""
    from pyspark.sql import functions as f

    if not exists(spark, path):
        return []
    table = spark.read.format("delta").load(path).where(f.col("topic").isin(*topics))
    times = [f.unix_millis(name).alias(name) for name in ("run", "time")]
    rows = table.select(*times, "topic", "partition", "measure", "label", "value").orderBy("run").collect()
    known = frozenset(Measure)
    return [_measurement(row) for row in rows if row["measure"] in known]


def last_ends(measurements: Iterable[Measurement], topic: str) -> dict[int, LastEnd]:
    """Where the last run about a topic ended, by partition."""
    ends: dict[int, tuple[int, LastEnd]] = {}
    for each in measurements:
        if each.topic != topic or each.measure is not Measure.END_OFFSET or each.partition is None:
            continue
        if each.partition not in ends or ends[each.partition][0] <= each.run_ms:
            ends[each.partition] = (each.run_ms, LastEnd(each.label or "", int(each.value)))
    return {partition: end for partition, (_, end) in ends.items()}


def _as_arrow(measurements: Sequence[Measurement]) -> pa.Table:
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "run": pa.array([each.run_ms * _US for each in measurements], moment),
            "topic": pa.array([each.topic for each in measurements], pa.string()),
            "partition": pa.array([each.partition for each in measurements], pa.int32()),
            "time": pa.array(
                [None if each.time_ms is None else each.time_ms * _US for each in measurements], moment
            ),
            "measure": pa.array([each.measure.value for each in measurements], pa.string()),
            "label": pa.array([each.label for each in measurements], pa.string()),
            "value": pa.array([each.value for each in measurements], pa.float64()),
        }
    )


def _measurement(row: Row) -> Measurement:
    return Measurement(
        run_ms=row["run"],
        topic=row["topic"],
        measure=Measure(row["measure"]),
        value=row["value"],
        partition=row["partition"],
        time_ms=row["time"],
        label=row["label"],
    )
