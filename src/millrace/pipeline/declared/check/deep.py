"""What only Spark can say about a pipeline: whether queries fit their tables, and how it would run them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.pipeline.declared.language.mistakes import InvalidPipeline, Mistake, Mistakes
from millrace.pipeline.declared.language.model import JdbcSink, Pipeline, Sink, TableSink, TopicSink
from millrace.pipeline.declared.language.topic_options import sink_options
from millrace.pipeline.declared.run import payload_columns
from millrace.pipeline.declared.run.frames import Frames, build_frames, note
from millrace.pipeline.declared.run.functions import register_functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def examine_deeply(spark: SparkSession, pipeline: Pipeline, scratch: Path) -> list[Mistake]:
    """Every mistake that Spark's parser, analyser and rules for streams find; nothing is read or written."""
    mistakes = Mistakes()
    frames = _frames(spark, pipeline, scratch, mistakes)
    for sink in pipeline.sinks.values():
        frame = frames.views.get(sink.view)
        if frame is None:
            continue
        try:
            _check_sink(spark, frame, sink, mistakes)
        except Exception as error:  # noqa: BLE001 - `note` tells Spark's and ours from bugs
            note(error, sink.mark, f"sinks.{sink.name}", mistakes)
    return mistakes.in_order()


def plans(spark: SparkSession, pipeline: Pipeline, scratch: Path, mode: str) -> dict[str, str]:
    """Spark's plan for each sink, as text."""
    mistakes = Mistakes()
    frames = _frames(spark, pipeline, scratch, mistakes)
    if mistakes.fatal:
        raise InvalidPipeline(pipeline.path, mistakes.in_order())
    return {sink.name: _plan_text(spark, frames.views[sink.view], mode) for sink in pipeline.sinks.values()}


def _plan_text(spark: SparkSession, frame: DataFrame, mode: str) -> str:
    """The plan as DataFrame.explain prints it.

    Spark looks at the plan as written to decide whether it explains a stream. There a table is only a name,
    so Spark would plan a batch, and refuse. Therefore we hand it the plan with its names resolved."""
    jvm: Any = spark._jvm
    analyzed = frame._jdf.queryExecution().analyzed()
    resolved = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, analyzed)
    return str(jvm.PythonSQLUtils.explainString(resolved.queryExecution(), mode))


def _frames(spark: SparkSession, pipeline: Pipeline, scratch: Path, mistakes: Mistakes) -> Frames:
    from millrace.pipeline import register

    register(spark)
    register_functions(spark, pipeline, scratch, mistakes)
    return build_frames(spark, pipeline, mistakes)


def _check_sink(spark: SparkSession, frame: DataFrame, sink: Sink, mistakes: Mistakes) -> None:
    from millrace.pipeline.sink.options import check_columns, read_sink_options

    match sink:
        case TopicSink():
            options = read_sink_options(sink_options(sink), is_streaming=frame.isStreaming)
            check_columns(payload_columns.encode(frame, sink).schema, options)
        case TableSink(partition_by=columns):
            _check_columns(frame, columns, "partition_by", sink, mistakes)
        case JdbcSink(key=columns):
            _check_columns(frame, columns, "key", sink, mistakes)
        case _:
            pass
    if frame.isStreaming:
        _check_stream(spark, frame, sink)


def _check_columns(
    frame: DataFrame, columns: tuple[str, ...], key: str, sink: Sink, mistakes: Mistakes
) -> None:
    known = {name.casefold() for name in frame.columns}
    for column in columns:
        if column.casefold() not in known:
            what = f"sinks.{sink.name}: {key}: {sink.view} has no column {column!r}"
            mistakes.unknown(sink.mark, what, column, frame.columns)


def _check_stream(spark: SparkSession, frame: DataFrame, sink: Sink) -> None:
    """Spark's own rules for streams, which it would otherwise only tell when the query starts."""
    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[sink.mode]()
    plan = frame._jdf.queryExecution().analyzed()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
