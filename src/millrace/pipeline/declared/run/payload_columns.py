"""Payloads of declared topics: the values of records as columns, and columns as the values of records.

A decoded topic has the columns of its schema and, beside them, those of the record: _key, _topic, _partition,
_offset, _timestamp. What does not parse goes to the dead letters, or shows in a column _error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.client.errors import InvalidOption
from millrace.pipeline.declared.language.mistakes import closest
from millrace.pipeline.declared.language.model import ArchiveSource, Payload, TopicSink, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DECODED: Final = "_millrace_decoded"
_BESIDE: Final = {
    "_key": "key",
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
}
# A record that is written again keeps these of them; the topic that it goes to gives it a new place.
_KEPT: Final = ("_key", "_headers", "_timestamp")
_OF_RECORDS: Final = (*_BESIDE, "_error")


def decode(raw: DataFrame, source: TopicSource | ArchiveSource) -> tuple[DataFrame, DataFrame | None]:
    """The rows that a source declares, and dead letters ready to be written if it wants them kept."""
    from pyspark.sql import functions as sf

    payload = source.payload
    if payload.format == "raw":
        return raw, None
    if payload.format == "text":
        return raw.withColumns({name: sf.col(name).cast("string") for name in ("key", "value")}), None

    from millrace.pipeline.payloads import dead_letters
    from millrace.pipeline.payloads import decode as decode_payloads

    kept = source.dead_letters if isinstance(source, TopicSource) else None
    beside = [sf.col(column).alias(name) for name, column in _BESIDE.items() if column in raw.columns]
    if kept is None:
        marked = decode_payloads(
            raw, payload.format, _schema(payload), into=_DECODED, mode="permissive", message=payload.message
        )
        return marked.select(f"{_DECODED}.*", *beside, sf.col("error").alias("_error")), None
    good, bad = decode_payloads(raw, payload.format, _schema(payload), into=_DECODED, message=payload.message)
    return good.select(f"{_DECODED}.*", *beside), dead_letters(bad, topic=kept)


def encode(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as records: key, value, and what else the rows say about the record."""
    from pyspark.sql import functions as sf

    if sink.payload.format in ("raw", "text"):
        return frame if sink.key is None else frame.withColumn("key", _key(frame, sink))
    columns = [name for name in frame.columns if name not in _OF_RECORDS]
    if not columns:
        raise InvalidOption(f"{sink.view} has no columns for a payload, only {', '.join(frame.columns)}")
    record = {_BESIDE[name]: sf.col(name) for name in _KEPT if name in frame.columns}
    if sink.key is not None:
        record["key"] = _key(frame, sink)
    if sink.topic is None:
        if "_topic" not in frame.columns:
            raise InvalidOption(f"topic '*' takes the topic from a column _topic, which {sink.view} lacks")
        record["topic"] = sf.col("_topic")
    beside = [column.alias(f"_millrace_{name}") for name, column in record.items()]
    rows = frame.select(*(sf.col(f"`{name}`") for name in columns), *beside)
    encoded = _encoded(rows, columns, sink.payload)
    return encoded.select("value", *(sf.col(f"_millrace_{name}").alias(name) for name in record))


def _encoded(rows: DataFrame, columns: list[str], payload: Payload) -> DataFrame:
    from pyspark.sql import functions as sf

    if payload.format == "json" and payload.schema is None and payload.schema_file is None:
        value = sf.to_json(sf.struct(*(sf.col(f"`{name}`") for name in columns)))
        beside = [name for name in rows.columns if name not in columns]
        return rows.select(value.alias("value"), *beside)

    from millrace.pipeline.payloads import encode as encode_payloads

    return encode_payloads(
        rows, payload.format, _schema(payload), columns=columns, into="value", message=payload.message
    )


def _key(frame: DataFrame, sink: TopicSink) -> Column:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import BinaryType

    assert sink.key is not None
    found = next((name for name in frame.columns if name.casefold() == sink.key.casefold()), None)
    if found is None:
        meant = closest(sink.key, frame.columns)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise InvalidOption(
            f"key: {sink.view} has no column {sink.key!r}{hint} It has {', '.join(frame.columns)}"
        )
    column = sf.col(f"`{found}`")
    return column if isinstance(frame.schema[found].dataType, BinaryType) else column.cast("string")


def _schema(payload: Payload) -> str | Path:
    # We hand over the file where there is one: what it imports lies beside it.
    schema = payload.schema if payload.schema_file is None else payload.schema_file
    assert schema is not None, payload
    return schema
