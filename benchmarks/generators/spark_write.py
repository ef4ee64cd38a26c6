"""Spark writing into topics, exactly once and at least once in turns: one batch, and a stream of many epochs.

Every query runs once to warm up. The deliveries take turns, so that what slows the machine down meets both.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.generators.protocol import run_generator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELIVERIES: Final = ("at_least_once", "exactly_once")


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    from millrace.pipeline import register
    from millrace.pipeline.spark.session import make_session

    spark = make_session(app_name="spark-write", master=arguments["master"], delta=False)
    register(spark)
    work = Path(tempfile.mkdtemp(prefix="spark-write-"))
    figures: dict[str, float] = {}
    try:
        for size, records in arguments["records"].items():
            rows = _rows(spark, int(size), records, arguments["tasks"])
            source = work / f"source-{size}"
            rows.repartition(arguments["epochs"]).write.parquet(str(source))
            for mode in ("batch", "stream"):
                for delivery, elapsed_s in _in_turns(spark, mode, rows, source, work, arguments).items():
                    figures[f"{mode}.{size}.{delivery}.elapsed_s"] = elapsed_s
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    return figures


def _rows(spark: SparkSession, size: int, records: int, tasks: int) -> DataFrame:
    value = f"cast(lpad(cast(id AS string), {size}, 'x') AS binary) AS value"
    return spark.range(0, records, 1, tasks).selectExpr("cast(cast(id AS string) AS binary) AS key", value)


def _in_turns(
    spark: SparkSession, mode: str, rows: DataFrame, source: Path, work: Path, arguments: Mapping[str, Any]
) -> dict[str, float]:
    """Seconds for one write by each delivery: the mean of all turns but the first."""
    spent = dict.fromkeys(DELIVERIES, 0.0)
    for turn in range(arguments["turns"] + 1):
        for delivery in DELIVERIES:
            options = {
                "bootstrap.servers": arguments["bootstrap"],
                "topic": arguments["topic"],
                "delivery": delivery,
            }
            started = time.perf_counter()
            if mode == "batch":
                rows.write.format("millrace").mode("append").options(**options).save()
            else:
                _stream(spark, source, work / f"checkpoint-{time.monotonic_ns()}", options)
            if turn:
                spent[delivery] += time.perf_counter() - started
    return {delivery: seconds / arguments["turns"] for delivery, seconds in spent.items()}


def _stream(spark: SparkSession, source: Path, checkpoint: Path, options: Mapping[str, str]) -> None:
    schema = "key binary, value binary"
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(source))
    writer = frame.writeStream.format("millrace").options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    run_generator(generate)
