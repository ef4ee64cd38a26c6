"""The rules for sources: which keys each kind has, and what they may say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.client.errors import InvalidOption
from millrace.pipeline.declared.language.ddl import check_ddl
from millrace.pipeline.declared.language.document import Scalar
from millrace.pipeline.declared.language.fields import Fields
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest
from millrace.pipeline.declared.language.model import (
    ArchiveSource,
    FileSource,
    JdbcSource,
    Payload,
    Source,
    TopicSource,
    Watermark,
)
from millrace.pipeline.declared.language.topic_options import source_options
from millrace.pipeline.declared.run.drivers import options_with_driver
from millrace.pipeline.topic_names import is_topic_name

PAYLOAD_FORMATS: Final = ("raw", "text", "json", "avro", "protobuf")
FILE_FORMATS: Final = ("parquet", "json", "csv", "text", "orc", "delta")
# The columns beside a decoded payload.
RECORD_COLUMNS: Final = ("_key", "_topic", "_partition", "_offset", "_timestamp")
RAW_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_PAYLOAD_KEYS: Final = ("format", "schema", "schema_file", "message")
_TOPIC_KEYS: Final = (
    *("topic", "topics", "pattern", "bootstrap.servers", *_PAYLOAD_KEYS),
    *("starting", "group", "dead_letters", "stream", "watermark", "options"),
)
_KEYS: Final = {
    "topic": _TOPIC_KEYS,
    "topics": _TOPIC_KEYS,
    "pattern": _TOPIC_KEYS,
    "archive": ("archive", *_PAYLOAD_KEYS, "stream", "watermark", "options"),
    "files": ("files", "format", "schema", "schema_file", "stream", "watermark", "options"),
    "jdbc": ("jdbc", "table", "query", "user", "password", "driver", "watermark", "options"),
}
_ADDRESS: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^\s:,/]+):(\d{1,5})")
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the rest of the file says: its folder, the pipeline's broker, and where mistakes go."""

    folder: Path
    bootstrap: str
    mistakes: Mistakes

    def location(self, path: str) -> str:
        """A relative path begins at the file's folder; a URL stays as it is."""
        if path.startswith("s3://"):
            # Hadoop knows Amazon's store by the name of its third client.
            return f"s3a://{path.removeprefix('s3://')}"
        if _URL.match(path) or Path(path).is_absolute():
            return path
        return str((self.folder / path).absolute())


def read_source(name: str, fields: Fields, around: Surroundings) -> Source | None:
    """One entry of `sources`; None if it is not even clear of what kind it is."""
    match read_kind(fields, _KEYS, around.mistakes, says="where the rows come from"):
        case None:
            return None
        case "archive":
            return _archive(name, fields, around)
        case "files":
            return _files(name, fields, around)
        case "jdbc":
            return _jdbc(name, fields, around)
        case _:
            return _topics(name, fields, around)


def read_kind(
    fields: Fields, keys_of: Mapping[str, Sequence[str]], mistakes: Mistakes, *, says: str
) -> str | None:
    """The one key that names the kind of a source or sink, once its other keys are checked; None without one.

    `keys_of` has the keys of each kind, `says` is what a kind says, for messages."""
    kinds = [key for key in keys_of if key in fields]
    if len(kinds) == 1:
        fields.only(keys_of[kinds[0]])
        return kinds[0]
    fields.only(list(dict.fromkeys(key for keys in keys_of.values() for key in keys)))
    if kinds:
        what = f"{fields.where}: {' and '.join(kinds)} together: one of them says {says}"
        mistakes.add(fields.mark, what, allowed=", ".join(keys_of))
    elif not any(closest(name, keys_of) for name in fields.names()):
        # `only` has reported a misspelt kind already, with the word that was meant.
        mistakes.add(fields.mark, f"{fields.where}: nothing says {says}", allowed=", ".join(keys_of))
    return None


def read_bootstrap(fields: Fields, around: Surroundings) -> str:
    """The broker that a table names, else the pipeline's."""
    text = fields.text("bootstrap.servers")
    if text is None:
        return around.bootstrap
    check_bootstrap(text, fields.mark_of("bootstrap.servers"), fields.where, around.mistakes)
    return text


def check_bootstrap(text: str, mark: Mark, where: str, mistakes: Mistakes) -> None:
    for address in text.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1]) <= 65535:
            mistakes.add(
                mark,
                f"{where}: {address.strip()!r} is not an address",
                allowed="HOST:PORT, several separated by commas",
            )


def check_topic(topic: str, mark: Mark, where: str, mistakes: Mistakes) -> None:
    if not is_topic_name(topic):
        mistakes.add(
            mark,
            f"{where}: {topic!r} is no topic's name",
            allowed="1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
        )


def read_payload(fields: Fields, around: Surroundings, *, schema_needed: tuple[str, ...]) -> Payload:
    """`format` with its schema, given inline or by file."""
    formatted = fields.choice("format", PAYLOAD_FORMATS, "raw")
    schema, mark = _schema_text(fields, around, is_text=not _is_descriptor_set(formatted, fields))
    where = fields.where
    if (
        schema is None
        and formatted in schema_needed
        and "schema" not in fields
        and "schema_file" not in fields
    ):
        around.mistakes.add(
            fields.mark_of("format"),
            f"{where}: format {formatted} needs a schema",
            allowed=f"schema: {_EXAMPLES[formatted]} or schema_file: FILE",
        )
    if schema is not None:
        _check_schema(formatted, schema, mark, where, around.mistakes)
    message = fields.text("message")
    if formatted != "protobuf" and message is not None:
        around.mistakes.add(fields.mark_of("message"), f"{where}: 'message' is for format protobuf only")
    file = fields.text("schema_file") if "schema" not in fields else None
    return Payload(
        format=formatted,
        schema=schema,
        schema_file=None if file is None else Path(around.location(file)),
        message=message,
    )


_EXAMPLES: Final = {
    "json": "id bigint, at timestamp, ...",
    "avro": '{"type": "record", ...}',
    "protobuf": 'syntax = "proto3"; message Order {...}',
}


def _is_descriptor_set(formatted: str, fields: Fields) -> bool:
    """Whether the schema's file is what protoc compiled, and so no text."""
    name = fields.text("schema_file")
    return formatted == "protobuf" and name is not None and not name.endswith(".proto")


def _schema_text(fields: Fields, around: Surroundings, *, is_text: bool = True) -> tuple[str | None, Mark]:
    if "schema" in fields and "schema_file" in fields:
        around.mistakes.add(fields.mark_of("schema_file"), f"{fields.where}: schema and schema_file together")
    scalar: Scalar | None = fields.scalar("schema")
    if scalar is not None:
        return fields.text("schema"), scalar.text_mark
    mark = fields.mark_of("schema_file")
    name = fields.text("schema_file")
    if name is None:
        return None, mark
    path = Path(around.location(name))
    try:
        content = path.read_bytes()
        return content.decode() if is_text else None, mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        around.mistakes.add(mark, f"{fields.where}: schema_file {name}: {reason}")
        return None, mark


def _check_schema(formatted: str, schema: str, mark: Mark, where: str, mistakes: Mistakes) -> None:
    match formatted:
        case "json" | "csv":
            check_ddl(schema, mark, mistakes, where=f"{where}.schema")
        case "avro":
            try:
                json.loads(schema)
            except ValueError as error:
                mistakes.add(mark, f"{where}.schema: not an Avro schema in JSON: {error}")
        case "protobuf":
            if "message" not in schema:
                mistakes.add(mark, f"{where}.schema: not a Protobuf schema: it defines no message")
        case _:
            mistakes.add(
                mark, f"{where}: a schema has no use with format {formatted}", allowed="json, avro, protobuf"
            )


def _topics(name: str, fields: Fields, around: Surroundings) -> Source:
    before = len(around.mistakes.found)
    topics = (*fields.texts("topic"), *fields.texts("topics"))
    for topic in topics:
        key = "topic" if "topic" in fields else "topics"
        check_topic(topic, fields.mark_of(key), fields.where, around.mistakes)
    pattern = fields.text("pattern")
    if pattern is not None:
        _check_pattern(pattern, fields, around.mistakes)
    payload = read_payload(fields, around, schema_needed=("json", "avro", "protobuf"))
    dead_letters = fields.text("dead_letters")
    if dead_letters is not None:
        mark = fields.mark_of("dead_letters")
        check_topic(dead_letters, mark, f"{fields.where}.dead_letters", around.mistakes)
        if payload.format in ("raw", "text"):
            what = f"{fields.where}: dead_letters with format {payload.format}, which always parses"
            around.mistakes.add(mark, what, allowed="format json, avro or protobuf")
        if dead_letters in topics:
            around.mistakes.add(
                mark, f"{fields.where}: dead_letters is the topic that is read: they would come round again"
            )
    source = TopicSource(
        name=name,
        mark=fields.mark,
        topics=topics,
        pattern=pattern,
        bootstrap=read_bootstrap(fields, around),
        payload=payload,
        starting=_starting(fields, around.mistakes),
        group=fields.text("group"),
        dead_letters=dead_letters,
        streaming=fields.flag("stream", True),
        options=fields.options("options"),
        watermark=_watermark(fields, _topic_columns(payload), around.mistakes),
    )
    if len(around.mistakes.found) == before and (topics or pattern):
        _check_options(fields, source, around)
    return source


def _check_options(fields: Fields, source: TopicSource, around: Surroundings) -> None:
    """The options go to the data source as they are: ask it whether it understands them."""
    from millrace.pipeline.source.options import read_options

    try:
        read_options(source_options(source), streaming=source.streaming)
    except InvalidOption as error:
        key = "options" if "options" in fields else "starting"
        around.mistakes.add(fields.mark_of(key), f"{fields.where}: {error}")


def _topic_columns(payload: Payload) -> list[str]:
    """The columns of a topic as far as they can be told here; none if they cannot."""
    if payload.format in ("raw", "text"):
        return list(RAW_COLUMNS)
    if payload.format == "json" and payload.schema is not None:
        return [*check_ddl(payload.schema, Mark(1), Mistakes(), where=""), *RECORD_COLUMNS]
    return []


def _watermark(fields: Fields, columns: list[str], mistakes: Mistakes) -> Watermark | None:
    watermark = fields.watermark()
    if watermark is None or not columns:
        return watermark
    if watermark.column.casefold() not in (column.casefold() for column in columns):
        what = f"{fields.where}: the watermark's column {watermark.column!r} is not in the schema"
        mistakes.unknown(fields.mark_of("watermark"), what, watermark.column, columns)
    return watermark


def _check_pattern(pattern: str, fields: Fields, mistakes: Mistakes) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        mistakes.add(
            fields.mark_of("pattern"),
            f"{fields.where}: pattern {pattern!r} is no regular expression: {error}",
        )


def _starting(fields: Fields, mistakes: Mistakes) -> str:
    text = fields.text("starting", "earliest")
    assert text is not None
    if text in ("earliest", "latest") or _is_offsets(text) or _is_time(text):
        return text
    mistakes.unknown(
        fields.mark_of("starting"),
        f"{fields.where}: starting cannot be {text!r}",
        text,
        ("earliest", "latest", "a time such as 2026-01-31T08:00:00Z", 'offsets such as {"orders":{"0":42}}'),
    )
    return "earliest"


def _is_offsets(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_time(text: str) -> bool:
    from datetime import datetime

    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _archive(name: str, fields: Fields, around: Surroundings) -> Source | None:
    path = fields.text("archive")
    return ArchiveSource(
        name=name,
        mark=fields.mark,
        path=around.location(path or "."),
        payload=read_payload(fields, around, schema_needed=("json", "avro", "protobuf")),
        streaming=fields.flag("stream", False),
        options=fields.options("options"),
        watermark=fields.watermark(),
    )


def _files(name: str, fields: Fields, around: Surroundings) -> Source | None:
    path = fields.text("files") or "."
    formatted = fields.text("format")
    mistakes = around.mistakes
    if formatted is None:
        formatted = _format_by_suffix(path)
    if formatted is None or formatted not in FILE_FORMATS:
        known = ", ".join(FILE_FORMATS)
        what = f"{fields.where}: " + (
            f"format cannot be {formatted!r}"
            if formatted
            else f"the format of {path} is not clear from its name"
        )
        meant = closest(formatted or "", FILE_FORMATS) or ""
        mistakes.add(fields.mark_of("format" if formatted else "files"), what, allowed=known, meant=meant)
        formatted = "parquet"
    schema, mark = _schema_text(fields, around)
    if schema is not None:
        check_ddl(schema, mark, mistakes, where=f"{fields.where}.schema")
    streaming = fields.flag("stream", False)
    if streaming and schema is None and formatted not in ("text", "delta") and "schema" not in fields:
        what = f"{fields.where}: files read as a stream need a schema, since the first may come later"
        mistakes.add(fields.mark_of("stream"), what, allowed="schema: NAME TYPE, NAME TYPE, ...")
    columns = check_ddl(schema, mark, Mistakes(), where="") if schema is not None else []
    return FileSource(
        name=name,
        mark=fields.mark,
        path=around.location(path),
        format=formatted,
        schema=schema,
        streaming=streaming,
        options=fields.options("options"),
        watermark=_watermark(fields, columns, mistakes),
    )


def _format_by_suffix(path: str) -> str | None:
    suffix = Path(path).suffix.lower().lstrip(".")
    return {"jsonl": "json", "ndjson": "json", "txt": "text"}.get(
        suffix, suffix if suffix in FILE_FORMATS else None
    )


def _jdbc(name: str, fields: Fields, around: Surroundings) -> Source | None:
    url = read_jdbc_url(fields, around.mistakes)
    table, query = fields.text("table"), fields.text("query")
    if (table is None) == (query is None):
        what = f"{fields.where}: " + ("table and query together" if table else "neither table nor query")
        around.mistakes.add(fields.mark, what, allowed="one of table, query")
    return JdbcSource(
        name=name,
        mark=fields.mark,
        url=url,
        table=table,
        query=query,
        options=jdbc_options(fields, url),
        watermark=fields.watermark(),
    )


def read_jdbc_url(fields: Fields, mistakes: Mistakes) -> str:
    url = fields.text("jdbc") or ""
    if url and not re.match(r"jdbc:[a-zA-Z0-9]+:.", url):
        mistakes.add(
            fields.mark_of("jdbc"),
            f"{fields.where}: {url!r} is no JDBC address",
            allowed="jdbc:postgresql://HOST:PORT/DATABASE and the like",
        )
    return url


def jdbc_options(fields: Fields, url: str) -> dict[str, str]:
    given = {key: fields.text(key) for key in ("user", "password", "driver")}
    named = {key: value for key, value in given.items() if value is not None} | fields.options("options")
    return options_with_driver(url, named)
