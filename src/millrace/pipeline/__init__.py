"""Topics as Spark tables and streams. Importing this package needs no Spark; using it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("millrace")` known to a session, for reading and writing, batch and streaming."""
    from millrace.pipeline.session import require_spark

    require_spark()
    from millrace.pipeline.data_source import MillraceDataSource

    # Without this setting Spark refuses sources that take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(MillraceDataSource)
