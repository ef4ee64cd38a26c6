"""A streaming query in a process of its own, to be killed: lines of files into a topic, exactly once.

python -m tests.pipeline.sink_driver BOOTSTRAP TOPIC SOURCE CHECKPOINT HOLDS

Each file of SOURCE is a batch; its lines read "file N line L". While HOLDS has a file named N, the tasks of
file N wait in the middle of their rows: their transactions are open, and no commit runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from millrace.pipeline import register
from millrace.pipeline.spark.session import make_session

BEFORE_HOLD = 3
"""How many batches a task hands on before it is held: the last of them may stay in a buffer on its way."""


def held(holds: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for handed_on, batch in enumerate(batches):
            hold = holds / batch["value"][0].as_py().split()[1]
            while handed_on == BEFORE_HOLD and hold.exists():
                time.sleep(0.02)
            yield batch

    return hand_on


def main() -> None:
    bootstrap, topic, source, checkpoint, holds = sys.argv[1:]
    spark = make_session(
        app_name="sink-driver",
        # Tasks whose worker is killed are tried again, up to five times.
        master="local[2,6]",
        delta=False,
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
            # What the tasks have handed on is not to wait in buffers, but to reach the sink.
            "spark.buffer.size": "64",
            "spark.sql.execution.pandas.udf.buffer.size": "64",
        },
    )
    register(spark)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(source)
    query = (
        lines.repartition(2, "value")
        .mapInArrow(held(Path(holds)), "value string")
        .writeStream.format("millrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("buffer.memory", "100")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
