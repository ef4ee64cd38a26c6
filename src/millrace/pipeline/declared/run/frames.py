"""The parts of a pipeline as Spark's data frames: sources, steps, and what could not be decoded.

Every failure becomes a mistake with the line that it came from, so that one look shows all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from millrace.client.errors import InvalidOption
from millrace.core.errors import MillraceError
from millrace.pipeline.declared.check.graph import label
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import (
    ArchiveSource,
    FileSource,
    JdbcSource,
    Pipeline,
    Source,
    Step,
    TopicSource,
    Watermark,
)
from millrace.pipeline.declared.language.topic_options import source_options
from millrace.pipeline.declared.run import payload_columns
from millrace.pipeline.declared.run.drivers import missing_driver
from millrace.pipeline.spark.spark_errors import explain, is_spark_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Where Spark's parser and analyser say that they stopped.
_PLACE: Final = re.compile(r"[;(\s]\(?line (?P<line>\d+),? pos (?P<column>\d+)\)?")
_ERROR_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_QUERY_PRINTED: Final = re.compile(r"\s*==\s*SQL.*", re.DOTALL)


@dataclass(slots=True)
class Frames:
    """Data frames by the names of their sources and steps; `rejected` holds rows that do not parse."""

    views: dict[str, DataFrame] = field(default_factory=dict)
    rejected: dict[str, DataFrame] = field(default_factory=dict)


def build_frames(spark: SparkSession, pipeline: Pipeline, mistakes: Mistakes) -> Frames:
    """Declare every source and step to Spark; what rests on a failed one is left out."""
    frames = Frames()
    for source in pipeline.sources.values():
        try:
            _add_source(spark, source, frames)
        except Exception as error:  # noqa: BLE001 - `note` tells Spark's and ours from bugs
            note(error, source.mark, f"sources.{source.name}", mistakes)
    for step in pipeline.steps.values():
        if any(name not in frames.views for name in pipeline.inputs_of(step.name)):
            continue
        try:
            frames.views[step.name] = _step_frame(spark, pipeline, step)
        except Exception as error:  # noqa: BLE001 - as above
            note(error, _place(error, step), label(step.name), mistakes)
        else:
            if not step.name.startswith("sink:"):
                frames.views[step.name].createOrReplaceTempView(step.name)
    return frames


def note(error: Exception, mark: Mark, where: str, mistakes: Mistakes) -> None:
    """Note an error of Spark's or ours as a mistake; raise any other, which is a bug."""
    if not is_spark_error(error) and not isinstance(error, MillraceError):
        raise error
    text = _ERROR_CLASS.sub("", _QUERY_PRINTED.sub("", explain(error)))
    mistakes.add(mark, f"{where}: {_PLACE.sub('', text).strip().rstrip(';.')}")


def _place(error: Exception, step: Step) -> Mark:
    match = _PLACE.search(str(error))
    if match is None:
        return step.sql_mark
    line = int(match["line"])
    column = int(match["column"]) + (step.sql_mark.column if line == 1 else 1)
    return Mark(step.sql_mark.line + line - 1, column)


def _add_source(spark: SparkSession, source: Source, frames: Frames) -> None:
    match source:
        case TopicSource():
            raw = _topic_frame(spark, source)
            frame, rejected = payload_columns.decode(raw, source)
            if rejected is not None:
                frames.rejected[source.name] = rejected
        case FileSource():
            frame = _file_frame(spark, source)
        case ArchiveSource(path=path, options=options):
            reader = spark.readStream if source.streaming else spark.read
            raw = reader.format("delta").options(**options).load(path)
            frame, _ = payload_columns.decode(raw, source)
        case JdbcSource(url=url, table=table, query=query, options=options):
            wanted = {"dbtable": table} if table is not None else {"query": query or ""}
            try:
                frame = spark.read.format("jdbc").options(url=url, **wanted).options(**options).load()
            except Exception as error:
                missing = missing_driver(error, url)
                if missing is None:
                    raise
                raise InvalidOption(missing) from error
    frame = _with_watermark(frame, source.watermark)
    frame.createOrReplaceTempView(source.name)
    frames.views[source.name] = frame


def _topic_frame(spark: SparkSession, source: TopicSource) -> DataFrame:
    options = source_options(source)
    # We read headers only where rows keep them: raw rows, and rejected ones that must be kept whole.
    if source.payload.format in ("raw", "text") or source.dead_letters is not None:
        options.setdefault("includeHeaders", "true")
    reader = spark.readStream if source.streaming else spark.read
    return reader.format("millrace").options(**options).load()


def _file_frame(spark: SparkSession, source: FileSource) -> DataFrame:
    if source.streaming:
        stream = spark.readStream.format(source.format).options(**source.options)
        if source.schema is not None:
            stream = stream.schema(source.schema)
        return stream.load(source.path)
    reader = spark.read.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    return reader.load(source.path)


def _step_frame(spark: SparkSession, pipeline: Pipeline, step: Step) -> DataFrame:
    frame = _with_watermark(spark.sql(step.sql), step.watermark)
    if not step.deduplicate:
        return frame
    columns = list(step.deduplicate)
    if pipeline.is_streaming(step.name) and pipeline.has_watermark(step.name):
        return frame.dropDuplicatesWithinWatermark(columns)
    return frame.dropDuplicates(columns)


def _with_watermark(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None or not frame.isStreaming:
        return frame
    return frame.withWatermark(watermark.column, f"{watermark.delay_ms} milliseconds")
