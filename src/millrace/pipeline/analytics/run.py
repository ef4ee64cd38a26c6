"""One run of analytics from end to end: ranges, the Spark job, the table, and a summary of each topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.pipeline.analytics import table
from millrace.pipeline.analytics.measurement import Measurement
from millrace.pipeline.analytics.measures import measure
from millrace.pipeline.analytics.ranges import ReadRange, plan_range
from millrace.pipeline.analytics.summary import TopicSummary, summarize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.client.broker_client import BrokerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticsOptions:
    """What to measure; times in ms since 1970."""

    topics: Sequence[str]
    table: str
    """The Delta table's path or URL."""
    source_options: Mapping[str, str]
    """How the data source reaches brokers."""
    from_ms: int | None = None
    """Where to begin; None goes on where the last run into the same table ended."""
    to_ms: int | None = None
    bucket_ms: int | None = None
    latency_header: str | None = None
    top_keys: int = 20


def measure_topics(
    spark: SparkSession,
    client: BrokerClient,
    options: AnalyticsOptions,
    *,
    run_ms: int,
    lag: Sequence[Measurement] = (),
) -> tuple[list[ReadRange], list[TopicSummary]]:
    """Measure, add to the table in one commit, and sum up the runs in it that belong together."""
    earlier = table.read(spark, options.table, options.topics)
    ranges = [
        plan_range(
            client,
            topic,
            last=table.last_ends(earlier, topic),
            from_ms=options.from_ms,
            to_ms=options.to_ms,
            bucket_ms=options.bucket_ms,
        )
        for topic in options.topics
    ]
    found = measure(
        spark,
        ranges,
        run_ms=run_ms,
        options=options.source_options,
        latency_header=options.latency_header,
        top_keys=options.top_keys,
    )
    found += lag
    table.append(spark, options.table, found)
    return ranges, [summarize([*earlier, *found], topic) for topic in options.topics]
