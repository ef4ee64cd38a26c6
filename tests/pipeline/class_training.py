"""A Spark program that does a little of everything, so that its JVM loads the classes that tests need.

python -m tests.pipeline.class_training DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from millrace.pipeline.spark.session import make_session
from tests.pipeline.shared_classes import end


def as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    directory = Path(sys.argv[1])
    spark = make_session(
        app_name="class-training",
        master="local[2]",
        delta=False,
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
        },
    )
    orders = spark.createDataFrame([(1, "a", 2.5), (2, "b", 3.5)], "id int, name string, price double")
    orders.write.parquet(str(directory / "orders"))
    spark.read.parquet(str(directory / "orders")).createOrReplaceTempView("orders")
    spark.sql(
        "SELECT l.name, sum(r.price) AS price, row_number() OVER (ORDER BY l.name) AS place "
        "FROM orders l JOIN orders r ON l.id = r.id WHERE l.id > 0 GROUP BY l.name ORDER BY price"
    ).collect()
    orders.selectExpr("to_json(struct(*)) AS value").write.text(str(directory / "lines"))
    lines = spark.readStream.format("text").load(str(directory / "lines"))
    query = (
        lines.repartition(2, "value")
        .mapInArrow(as_they_are, "value string")
        .writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    end(spark)


if __name__ == "__main__":
    main()
