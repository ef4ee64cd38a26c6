"""Records that could not be used, in a topic of their own: unchanged, with the reason in headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads.columns import ERROR

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PREFIX: Final = "millrace.error."
"""Headers of dead letters: reason, and topic, partition, offset and timestamp of the record, where known."""
_ORIGINS: Final = ("topic", "partition", "offset", "timestamp")
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def dead_letters(bad: DataFrame, *, topic: str) -> DataFrame:
    """Rows to be written to `topic`, from those that `decode` has set aside."""
    for name in (ERROR, "value"):
        if name not in bad.columns:
            raise InvalidOption(
                f"a dead letter needs the column {name!r}; there are {', '.join(bad.columns)}"
            )
    headers = [_header("reason", sf.col(ERROR))]
    headers += [_header(name, _text(bad, name)) for name in _ORIGINS if name in bad.columns]
    ours = sf.array(*headers)
    if "headers" in bad.columns:
        theirs = sf.coalesce(sf.col("headers"), sf.array().cast(_HEADERS_TYPE))
        ours = sf.concat(theirs, ours)
    columns = [sf.lit(topic).alias("topic"), sf.col("value").cast("binary").alias("value")]
    if "key" in bad.columns:
        columns.append(sf.col("key").cast("binary").alias("key"))
    return bad.select(*columns, ours.cast(_HEADERS_TYPE).alias("headers"))


def with_dead_letters(
    good: DataFrame, bad: DataFrame, *, dead_letter_topic: str, topic: str | None = None
) -> DataFrame:
    """One frame for the writer: `good` as it is (to `topic`, or its own column), `bad` as dead letters.

    One writer writes both, so they are committed together.
    """
    rows = good.withColumn("topic", sf.lit(topic)) if topic is not None else good
    for name in ("topic", "value"):
        if name not in rows.columns:
            raise InvalidOption(f"the rows to be written have no column {name!r}; encode them first")
    for name in ("key", "value"):
        if name in rows.columns and isinstance(rows.schema[name].dataType, StringType):
            rows = rows.withColumn(name, sf.col(name).cast("binary"))
    if "headers" in rows.columns:
        rows = rows.withColumn("headers", sf.col("headers").cast(_HEADERS_TYPE))
    return rows.unionByName(dead_letters(bad, topic=dead_letter_topic), allowMissingColumns=True)


def write_stream_with_dead_letters(
    good: DataFrame,
    bad: DataFrame,
    *,
    dead_letter_topic: str,
    checkpoint: str,
    options: Mapping[str, str],
    topic: str | None = None,
    trigger: Mapping[str, bool | str] | None = None,
    query_name: str | None = None,
) -> StreamingQuery:
    """Start a query that writes good rows and dead letters, each exactly once.

    `options` are those of the writer; `trigger` is as for DataStreamWriter, such as {"availableNow": True}.
    """
    rows = with_dead_letters(good, bad, dead_letter_topic=dead_letter_topic, topic=topic)
    writer = rows.writeStream.format("millrace").options(
        **{"markerTopic": topic or dead_letter_topic} | dict(options)
    )
    writer = writer.option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        settings: dict[str, Any] = dict(trigger)
        writer = writer.trigger(**settings)
    return writer.start()


def _header(name: str, value: Column) -> Column:
    return sf.struct(sf.lit(f"{PREFIX}{name}").alias("key"), value.cast("binary").alias("value"))


def _text(frame: DataFrame, name: str) -> Column:
    column = sf.col(name)
    if name == "timestamp" and frame.schema[name].dataType.typeName().startswith("timestamp"):
        return sf.unix_millis(column.cast("timestamp")).cast("string")
    return column.cast("string")
