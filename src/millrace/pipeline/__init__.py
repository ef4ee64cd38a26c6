"""Topics as Spark tables and streams. Importing this package needs no Spark; using it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_with_archive", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("millrace")` known to a session, for reading and writing, batch and streaming."""
    from millrace.pipeline.spark.session import require_spark

    require_spark()
    from millrace.pipeline.source.data_source import MillraceDataSource
    from millrace.pipeline.spark.worker_path import prefer_installed_pyspark

    prefer_installed_pyspark(spark)
    # Without this setting Spark refuses sources that take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(MillraceDataSource)


def read_with_archive(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """An archive and its live topic as one table, without gap or overlap: see `lake.backfill`."""
    from millrace.pipeline.lake import backfill

    register(spark)
    return backfill.read_with_archive(spark, options)
