"""Where a payload's schema comes from, inline or a file, and what each format makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.sql.types import StructType

from millrace.client.errors import InvalidOption

FORMATS: Final = ("json", "avro", "protobuf")
_FILE_PREFIX: Final = "file:"

SchemaSource = str | bytes | Path | StructType
"""Text is the schema itself, or `file:` and a path; a Path is read."""


class Undecodable(ValueError):
    """One payload does not fit its schema; the text says why."""


class Payload(Protocol):
    """A format with a schema. It travels to Spark's workers, and makes its functions there."""

    @property
    def format(self) -> str: ...

    @property
    def spark_type(self) -> StructType:
        """The columns that a payload becomes."""
        ...

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """A function from a payload to its row; it raises Undecodable."""
        ...

    def encoder(self) -> Callable[[dict[str, Any]], bytes]:
        """A function from a row to its payload; it raises Undecodable."""
        ...

    def check_encodable(self, columns: StructType) -> None:
        """Raise InvalidOption unless rows of these columns can become payloads."""
        ...


def read_payload(format: str, schema: SchemaSource, *, message: str | None = None) -> Payload:  # noqa: A002
    """Read and check a schema; `message` names the message of a Protobuf schema that has several."""
    name = format.lower()
    if name not in FORMATS:
        raise InvalidOption(f"payload format {format!r}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if message is not None and name != "protobuf":
        raise InvalidOption(f"message={message!r} is for protobuf, the format is {name}")
    if name == "json":
        from millrace.pipeline.payloads.json_payload import read_json_schema

        return read_json_schema(schema)
    if name == "avro":
        from millrace.pipeline.payloads.avro_payload import read_avro_schema

        return read_avro_schema(schema)
    from millrace.pipeline.payloads.protobuf_payload import read_protobuf_schema

    return read_protobuf_schema(schema, message)


def first_line(error: Exception) -> str:
    """What a library says about a payload or a schema, without its further lines."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def schema_path(schema: SchemaSource) -> Path | None:
    """The file that holds the schema, None if it is given inline."""
    if isinstance(schema, Path):
        return schema
    if isinstance(schema, str) and schema.startswith(_FILE_PREFIX):
        return Path(schema.removeprefix(_FILE_PREFIX))
    return None


def schema_text(schema: SchemaSource) -> str:
    """The schema's text, wherever it is."""
    path = schema_path(schema)
    try:
        content = schema if path is None else path.read_bytes()
        text = content.decode() if isinstance(content, bytes) else content
    except OSError as error:
        raise InvalidOption(f"schema file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise InvalidOption(f"schema file {path}: is not text") from None
    assert isinstance(text, str), type(text)
    if not text.strip():
        raise InvalidOption("the schema is empty")
    return text
