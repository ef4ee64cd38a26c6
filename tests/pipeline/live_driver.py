"""A streaming query from the end of a topic into another one, in a process of its own, to be killed.

python -m tests.pipeline.live_driver BOOTSTRAP SOURCE TARGET CHECKPOINT forever|available-now
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from millrace.pipeline import register
from millrace.pipeline.spark.session import make_session

PAUSE_S = 0.2


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that whoever kills the driver finds a batch in the middle of its work."""
    for batch in batches:
        yield batch
        time.sleep(PAUSE_S)


def main() -> None:
    bootstrap, source, target, checkpoint, until = sys.argv[1:]
    spark = make_session(app_name="live-driver", master="local[2]", delta=False)
    register(spark)
    rows = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("columns", "value,partition")
        .load()
        .mapInArrow(slowly, "value binary, partition int")
    )
    writer = (
        rows.writeStream.format("millrace")
        .option("bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("buffer.memory", "1000")
        .option("checkpointLocation", checkpoint)
    )
    if until == "available-now":
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
