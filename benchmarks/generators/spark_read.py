"""Spark reading topics whole, as a batch and as a stream that ends: by Millrace's source or by Spark's own.

It runs by its path in one of two environments, so it imports nothing from here but the source it measures.
Each query runs once to warm up and is then timed; CPU time is that of the driver, the JVM and all workers.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_USER, _CHILDREN_SYSTEM, _PARENT = 11, 14, 1


def generate(arguments: Mapping[str, Any]) -> dict[str, float]:
    spark = _session(arguments)
    figures: dict[str, float] = {}
    try:
        for size, topic in arguments["topics"].items():
            options = {**arguments["options"], "subscribe": topic, "startingOffsets": "earliest"}
            source = arguments["format"]
            for mode, run in (("batch", _read_batch), ("stream", _read_stream)):
                run(spark, source, options)
                elapsed_s, cpu_s = _measured(partial(run, spark, source, options))
                figures[f"{mode}.{size}.elapsed_s"] = elapsed_s
                figures[f"{mode}.{size}.cpu_s"] = cpu_s
            figures[f"{size}.rows"] = spark.read.format(source).options(**options).load().count()
    finally:
        spark.stop()
    return figures


def _session(arguments: Mapping[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(arguments["master"])
        .appName("millrace-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
    )
    if os.environ.get("SPARK_JARS"):
        builder = builder.config("spark.jars", os.environ["SPARK_JARS"])
    spark: SparkSession = builder.getOrCreate()
    if arguments["format"] == "millrace":
        from millrace.pipeline import register

        register(spark)
    return spark


def _read_batch(spark: SparkSession, source: str, options: Mapping[str, str]) -> None:
    frame = spark.read.format(source).options(**options).load()
    frame.write.format("noop").mode("overwrite").save()


def _read_stream(spark: SparkSession, source: str, options: Mapping[str, str]) -> None:
    checkpoint = tempfile.mkdtemp(prefix="spark-read-")
    try:
        frame = spark.readStream.format(source).options(**options).load()
        query = (
            frame.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        query.awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _measured(work: Callable[[], None]) -> tuple[float, float]:
    cpu_before, started = _tree_cpu_s(), time.perf_counter()
    work()
    return time.perf_counter() - started, _tree_cpu_s() - cpu_before


def _tree_cpu_s() -> float:
    """CPU time of this process and all below it, and of those below that have ended."""
    stats = {int(each.name): _stat(each) for each in Path("/proc").iterdir() if each.name.isdigit()}
    tree = [os.getpid()]
    for pid in tree:
        tree += [child for child, stat in stats.items() if stat and stat[_PARENT] == pid]
    ticks = sum(sum(stats[pid][_USER : _CHILDREN_SYSTEM + 1]) for pid in tree if stats.get(pid))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(process: Path) -> list[int]:
    try:
        text = (process / "stat").read_text()
    except OSError:
        return []
    # The command's name may hold blanks and brackets; numbers begin behind the last bracket and the state.
    return [0, *(int(word) for word in text.rpartition(")")[2].split()[1:])]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(generate(json.loads(sys.argv[1]))) + "\n")
