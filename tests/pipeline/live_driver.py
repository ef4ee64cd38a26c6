"""A streaming query from the end of a topic into another one, in a process of its own, to be killed.

python -m tests.pipeline.live_driver BOOTSTRAP SOURCE TARGET CHECKPOINT HOLD forever|available-now

While the file HOLD is there, no task ends, so that whoever kills the driver finds a batch in its midst.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from millrace.pipeline import register
from millrace.pipeline.spark.session import make_session


def held(hold: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        while hold.exists():
            time.sleep(0.02)

    return hand_on


def main() -> None:
    bootstrap, source, target, checkpoint, hold, until = sys.argv[1:]
    spark = make_session(app_name="live-driver", master="local[2]", delta=False)
    register(spark)
    rows = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("columns", "value,partition")
        .load()
        .mapInArrow(held(Path(hold)), "value binary, partition int")
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
