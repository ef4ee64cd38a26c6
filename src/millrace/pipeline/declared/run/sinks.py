"""Starts the query of each sink, or writes it once if nothing in it is a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.pipeline.declared.language.model import (
    ConsoleSink,
    JdbcSink,
    Sink,
    TableSink,
    TopicSink,
    TopicSource,
    Trigger,
)
from millrace.pipeline.declared.language.topic_options import dead_letter_options, sink_options
from millrace.pipeline.declared.run import jdbc, payload_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start_stream(frame: DataFrame, sink: Sink, *, checkpoint: str, pipeline: str) -> StreamingQuery:
    """Start the query of a sink; it goes on from `checkpoint` if that is there."""
    rows = payload_columns.encode(frame, sink) if isinstance(sink, TopicSink) else frame
    writer = _with_trigger(rows.writeStream.queryName(sink.name).outputMode(sink.mode), sink.trigger)
    writer = writer.option("checkpointLocation", checkpoint)
    match sink:
        case TopicSink(mode="append"):
            return writer.format("millrace").options(**sink_options(sink)).start()
        case TopicSink():
            return writer.foreachBatch(_topic_batches(sink)).start()
        case TableSink(format=format_name, path=path, partition_by=columns, options=options):
            if columns:
                writer = writer.partitionBy(*columns)
            return writer.format(format_name).options(**options).start(path)
        case JdbcSink():
            return writer.foreachBatch(jdbc.batch_writer(sink, f"{pipeline}.{sink.name}")).start()
        case ConsoleSink(rows=count, truncate=truncate):
            shown = writer.format("console").option("numRows", count)
            return shown.option("truncate", str(truncate).lower()).start()


def start_dead_letters(
    rejected: DataFrame, source: TopicSource, *, checkpoint: str, trigger: Trigger
) -> StreamingQuery:
    """Start the query that keeps what a source could not decode, with the reason."""
    writer = rejected.writeStream.queryName(f"{source.name}.dead_letters").outputMode("append")
    writer = _with_trigger(writer, trigger).option("checkpointLocation", checkpoint)
    return writer.format("millrace").options(**dead_letter_options(source)).start()


def write_dead_letters_once(rejected: DataFrame, source: TopicSource, *, job: str, version: int) -> None:
    """Write what a source could not decode, as a whole; `job` and `version` are those of `write_once`."""
    named = {"txnAppId": job, "txnVersion": str(version)}
    rejected.write.format("millrace").options(**named | dead_letter_options(source)).mode("append").save()


def write_once(frame: DataFrame, sink: Sink, *, job: str, version: int) -> None:
    """Write a frame that is not a stream, as a whole.

    `job` is the sink's name among all that write there, and `version` grows with each run. Topics and
    databases remember both: the same again, after a try of unknown outcome, writes only what is missing."""
    mode = "overwrite" if sink.mode == "complete" else "append"
    match sink:
        case TopicSink():
            rows = payload_columns.encode(frame, sink)
            named = {"txnAppId": job, "txnVersion": str(version)} if sink.delivery == "exactly-once" else {}
            rows.write.format("millrace").options(**named | sink_options(sink)).mode("append").save()
        case TableSink(format=format_name, path=path, partition_by=columns, options=options):
            writer = frame.write.format(format_name).options(**options).mode(mode)
            (writer.partitionBy(*columns) if columns else writer).save(path)
        case JdbcSink():
            jdbc.write_once(frame, sink, job, version)
        case ConsoleSink(rows=count, truncate=truncate):
            frame.show(count, truncate)


def _topic_batches(sink: TopicSink) -> Callable[[DataFrame, int], None]:
    """Spark gives a Python sink only new rows; rows that replace others come in batches with a number."""
    options = sink_options(sink)

    def write(batch: DataFrame, batch_id: int) -> None:
        if sink.delivery == "exactly-once":
            query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            marked = options | {"txnAppId": f"{sink.name}-{query_id}", "txnVersion": str(batch_id)}
        else:
            marked = options
        batch.write.format("millrace").options(**marked).mode("append").save()

    return write


def _with_trigger(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    settings: dict[str, Any] = {"processingTime": "0 seconds"}
    if trigger.kind == "available-now":
        settings = {"availableNow": True}
    elif trigger.kind == "every":
        settings = {"processingTime": f"{trigger.every_ms} milliseconds"}
    return writer.trigger(**settings)
