"""Avro payloads: one datum of one record type, without a container or a registry's header."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads.schemas import SchemaSource, Undecodable, first_line, schema_text

_PRIMITIVES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
    "time-millis": IntegerType(),
    "time-micros": LongType(),
    "uuid": StringType(),
}
_WIDER: Final[dict[frozenset[str], DataType]] = {
    frozenset(("int", "long")): LongType(),
    frozenset(("float", "double")): DoubleType(),
}
Adapter = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AvroPayload:
    """Payloads of one Avro record type."""

    text: str
    spark_type: StructType
    format: str = "avro"
    defaults: frozenset[str] = field(default=frozenset())
    """Fields that a row may lack."""

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        schema = fastavro.parse_schema(json.loads(self.text))
        adapt = _adapter(json.loads(self.text), {})

        def decode(value: bytes) -> dict[str, Any]:
            stream = io.BytesIO(value)
            try:
                found: Any = fastavro.schemaless_reader(stream, schema, None)
            except EOFError:
                raise Undecodable(f"not Avro of this schema: it ends after {len(value)} bytes") from None
            except Exception as error:
                raise Undecodable(f"not Avro of this schema: {first_line(error)}") from error
            rest = len(value) - stream.tell()
            if rest:
                raise Undecodable(f"not Avro of this schema: {rest} bytes follow the record")
            row: dict[str, Any] = found if adapt is None else adapt(found)
            return row

        return decode

    def encoder(self) -> Callable[[dict[str, Any]], bytes]:
        schema = fastavro.parse_schema(json.loads(self.text))

        def encode(row: dict[str, Any]) -> bytes:
            stream = io.BytesIO()
            try:
                fastavro.schemaless_writer(stream, schema, row)
            except Exception as error:
                raise Undecodable(f"does not fit the Avro schema: {first_line(error)}") from error
            return stream.getvalue()

        return encode

    def check_encodable(self, columns: StructType) -> None:
        names = columns.fieldNames()
        known = self.spark_type.fieldNames()
        extra = [name for name in names if name not in known]
        if extra:
            raise InvalidOption(
                f"column {extra[0]!r} is not in the Avro schema, which has {', '.join(known)}"
            )
        for name in known:
            if name not in names and name not in self.defaults:
                raise InvalidOption(f"the Avro schema needs a column {name!r}; there are {', '.join(names)}")


def read_avro_schema(schema: SchemaSource) -> AvroPayload:
    if isinstance(schema, StructType):
        raise InvalidOption("the schema for Avro is a StructType: must be an Avro schema in JSON")
    text = schema_text(schema)
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"the Avro schema is not JSON: {error}") from error
    try:
        fastavro.parse_schema(json.loads(text))
    except Exception as error:
        words = f"unknown type {error}" if type(error).__name__ == "UnknownType" else first_line(error)
        raise InvalidOption(f"the Avro schema is not valid: {words}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise InvalidOption("the Avro schema must be a record: its fields become columns")
    spark_type = _spark_type(parsed, {}, "")
    assert isinstance(spark_type, StructType)
    optional = frozenset(each["name"] for each in parsed["fields"] if "default" in each)
    return AvroPayload(text, spark_type, defaults=optional)


def _spark_type(schema: Any, named: dict[str, Any], inside: str) -> DataType:
    """The Spark type of one Avro type; `named` holds the records, enums and fixed types seen so far."""
    if isinstance(schema, list):
        return _union_type(schema, named, inside)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in named:
            found = named[schema]
            if found is None:
                raise InvalidOption(f"the Avro schema is recursive at {schema}: a table has no such type")
            return _spark_type(
                found, {name: each for name, each in named.items() if each is not found}, inside
            )
        raise InvalidOption(f"the Avro schema names an unknown type {schema!r}{inside}")
    kind = schema["type"]
    logical = schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL and kind in ("int", "long", "string"):
        return _LOGICAL[logical]
    if kind == "record":
        return _record_type(schema, named)
    if kind in ("enum", "fixed"):
        _remember(schema, named, schema)
        return StringType() if kind == "enum" else BinaryType()
    if kind == "array":
        items = schema["items"]
        return ArrayType(_spark_type(items, named, inside), containsNull=_is_nullable(items))
    if kind == "map":
        values = schema["values"]
        return MapType(
            StringType(), _spark_type(values, named, inside), valueContainsNull=_is_nullable(values)
        )
    return _spark_type(kind, named, inside)


def _record_type(schema: Any, named: dict[str, Any]) -> StructType:
    # Inside itself a record has no type yet: a name that leads back is a recursion.
    _remember(schema, named, None)
    fields = []
    for each in schema["fields"]:
        place = f" in field {each['name']!r}"
        fields.append(StructField(each["name"], _spark_type(each["type"], named, place)))
    _remember(schema, named, schema)
    return StructType(fields)


def _union_type(schema: list[Any], named: dict[str, Any], inside: str) -> DataType:
    branches = [each for each in schema if each != "null"]
    if len(branches) == 1:
        return _spark_type(branches[0], named, inside)
    names = frozenset(each for each in branches if isinstance(each, str))
    if len(names) == len(branches) and names in _WIDER:
        return _WIDER[names]
    raise InvalidOption(f"the Avro schema has a union{inside} of several types: a column has one (and null)")


def _remember(schema: Any, named: dict[str, Any], found: Any) -> None:
    name = schema["name"]
    named[name] = found
    namespace = schema.get("namespace")
    if namespace and "." not in name:
        named[f"{namespace}.{name}"] = found


def _is_nullable(schema: Any) -> bool:
    return isinstance(schema, list) and "null" in schema


def _adapter(schema: Any, named: dict[str, Any]) -> Adapter | None:
    """What turns a decoded value into what Arrow takes; None where it is that already."""
    if isinstance(schema, list):
        inner = next((adapter for each in schema if (adapter := _adapter(each, named))), None)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if isinstance(schema, str):
        return _adapter(named[schema], named) if named.get(schema) is not None else None
    kind = schema["type"]
    logical = schema.get("logicalType")
    if logical == "uuid":
        return lambda value: str(value) if isinstance(value, uuid.UUID) else value
    if logical == "time-millis":
        return lambda value: _micros(value) // 1000
    if logical == "time-micros":
        return _micros
    if kind == "record":
        return _record_adapter(schema, named)
    if kind == "array":
        item = _adapter(schema["items"], named)
        return None if item is None else lambda values: [item(each) for each in values]
    if kind == "map":
        value_adapter = _adapter(schema["values"], named)
        if value_adapter is None:
            return lambda values: list(values.items())
        return lambda values: [(key, value_adapter(each)) for key, each in values.items()]
    if kind in ("enum", "fixed"):
        return None
    return _adapter(kind, named) if not isinstance(kind, str) or kind in named else None


def _record_adapter(schema: Any, named: dict[str, Any]) -> Adapter | None:
    adapters = {
        each["name"]: adapter
        for each in schema["fields"]
        if (adapter := _adapter(each["type"], named)) is not None
    }
    _remember(schema, named, schema)
    if not adapters:
        return None

    def adapt(row: dict[str, Any]) -> dict[str, Any]:
        for name, adapter in adapters.items():
            row[name] = adapter(row[name])
        return row

    return adapt


def _micros(value: Any) -> int:
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return int(value)
