"""JSON payloads. Spark parses them itself; Python only finds words for what is wrong with bad ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads.schemas import SchemaSource, Undecodable, schema_text

CORRUPT: Final = "_millrace_corrupt"
TO_JSON: Final = {
    # Spark would cut microseconds off. The letters are those of Java's DateTimeFormatter: six S stand for the
    # fraction of a second, three X for the zone's offset, such as +01:00, or Z for UTC.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True)
class JsonPayload:
    """Payloads that are JSON objects with these fields."""

    spark_type: StructType
    format: str = "json"

    def parsed(self, value: Column) -> Column:
        """The struct of one payload, with the column CORRUPT set where it does not fit."""
        fields = [StructField(field.name, field.dataType) for field in self.spark_type.fields]
        schema = StructType([*fields, StructField(CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        return sf.from_json(value.cast("string"), schema, options)

    def required(self) -> list[str]:
        """Fields that must be there: those declared NOT NULL."""
        return [field.name for field in self.spark_type.fields if not field.nullable]

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        def decode(value: bytes) -> dict[str, Any]:
            raise Undecodable(explain(value, self.spark_type))

        return decode

    def encoder(self) -> Callable[[dict[str, Any]], bytes]:
        def encode(row: dict[str, Any]) -> bytes:
            return json.dumps(row, default=str).encode()

        return encode

    def check_encodable(self, columns: StructType) -> None:
        _same_fields(columns, self.spark_type)


def read_json_schema(schema: SchemaSource) -> JsonPayload:
    """Read a StructType, its DDL ("id long, name string NOT NULL") or its JSON."""
    if isinstance(schema, StructType):
        return JsonPayload(schema)
    text = schema_text(schema)
    try:
        if text.lstrip().startswith("{"):
            return JsonPayload(StructType.fromJson(json.loads(text)))
        from pyspark.sql.types import _parse_datatype_string

        found = _parse_datatype_string(text)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidOption(
            f"the schema for JSON is not a list of columns such as 'id long': {first}"
        ) from error
    if not isinstance(found, StructType):
        raise InvalidOption(f"the schema for JSON is {found.simpleString()}: must be a list of columns")
    return JsonPayload(found)


def explain(value: bytes, schema: StructType) -> str:
    """Why a payload does not fit, for people."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"not JSON: byte {error.start} is not UTF-8"
    try:
        found = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(found, dict):
        return f"not a JSON object but {_kind(found)}"
    for field in schema.fields:
        if found.get(field.name) is None:
            if not field.nullable:
                return f"field {field.name!r} is missing or null"
            continue
        if not _fits(found[field.name], field.dataType):
            kind = _kind(found[field.name])
            return f"field {field.name!r} is {kind}, not {field.dataType.simpleString()}"
    return f"does not fit the schema {schema.simpleString()}"


def _fits(value: object, kind: DataType) -> bool:
    """A rough check: what it lets pass is only described less exactly."""
    if value is None:
        return True
    if isinstance(kind, IntegralType):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, FractionalType):
        return isinstance(value, (int, float, str)) and not isinstance(value, bool)
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, ArrayType):
        return isinstance(value, list)
    if isinstance(kind, (StructType, MapType)):
        return isinstance(value, dict)
    return True


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


def _same_fields(columns: StructType, schema: StructType) -> None:
    extra = [name for name in columns.fieldNames() if name not in schema.fieldNames()]
    if extra:
        raise InvalidOption(
            f"column {extra[0]!r} is not in the schema, which has {', '.join(schema.fieldNames())}"
        )
