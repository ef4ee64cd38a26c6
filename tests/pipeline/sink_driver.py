"""A streaming query in a process of its own, to be killed: lines of files into a topic, exactly once.

python -m tests.pipeline.sink_driver BOOTSTRAP TOPIC SOURCE CHECKPOINT
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from millrace.pipeline import register
from millrace.pipeline.spark.session import make_session

PAUSE_S = 0.1


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that whoever kills something finds tasks in the middle of their work."""
    for batch in batches:
        time.sleep(PAUSE_S)
        yield batch


def main() -> None:
    bootstrap, topic, source, checkpoint = sys.argv[1:]
    spark = make_session(
        app_name="sink-driver",
        # Tasks whose worker is killed are tried again, up to five times.
        master="local[2,6]",
        delta=False,
        config={"spark.sql.shuffle.partitions": "2", "spark.sql.execution.arrow.maxRecordsPerBatch": "50"},
    )
    register(spark)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(source)
    query = (
        lines.repartition(2, "value")
        .mapInArrow(slowly, "value string")
        .writeStream.format("millrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("buffer.memory", "1000")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
