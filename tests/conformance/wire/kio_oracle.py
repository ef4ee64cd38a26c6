"""Random messages of ours, and the same as kio's objects. kio only ever reads bytes that these tests made."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, get_args

from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from millrace.wire.api_keys import API_SCHEMAS, DATA_SCHEMAS, ApiSchema
from millrace.wire.schema_fields import OUR_TAGS_FROM, Field, Message
from millrace.wire.schema_source import element_kind, is_array

MILLISECOND: Final = dt.timedelta(milliseconds=1)
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

NUMBERS: Final = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    # kio knows only these, and durations and dates only as far as Python's own types reach.
    "error_code": st.sampled_from([int(code) for code in ErrorCode]),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1),
    "timedelta_i64": st.integers(-(10**12), 10**12),
    "datetime_i64": st.integers(0, 253_402_300_000).map(lambda seconds: seconds * 1000),
}
# Beyond 126 bytes the compact length takes a second byte.
TEXTS: Final = st.text(max_size=12) | st.integers(100, 400).map(lambda length: "é" * length)
BYTES: Final = st.binary(max_size=24) | st.integers(100, 400).map(lambda length: b"\xff" * length)
UUIDS: Final = st.binary(min_size=16, max_size=16) | st.just(bytes(16))


class Entity(NamedTuple):
    name: str
    version: int
    kind: Any
    schema: ApiSchema

    @property
    def label(self) -> str:
        return f"{self.schema.name}-{self.kind.name}-v{self.version}"

    @property
    def is_flexible(self) -> bool:
        return self.schema.flexible_from is not None and self.version >= self.schema.flexible_from

    def our_class(self) -> type[Message]:
        module = __import__(f"millrace.wire.messages.{self.schema.module}", fromlist=["*"])
        suffix = "" if self.kind is EntityType.data else self.kind.name.capitalize()
        cls: type[Message] = getattr(module, self.schema.name + suffix)
        return cls

    def kio_class(self) -> Any:
        return load_entity_schema(self.name, self.version, self.kind)


def all_entities() -> Iterator[Entity]:
    by_module = {schema.module: schema for schema in (*API_SCHEMAS.values(), *DATA_SCHEMAS.values())}
    for name, versions in schema_name_map.items():
        for version, kinds in versions.items():
            for kind in kinds:
                if kind is not EntityType.header:
                    yield Entity(name, version, kind, by_module[name])


@st.composite
def messages(draw: st.DrawFn, cls: type[Message], kio_class: Any, version: int) -> object:
    """A message of ours with random values in every field that this version has."""
    values = {}
    for field, raw in paired_fields(cls, kio_class, version):
        # Tagged fields that keep their default are not sent.
        if field.tag is not None and draw(st.booleans()):
            continue
        values[field.name] = draw(field_values(field, raw, version))
    return cls(**values)


def field_values(field: Field, raw: Any, version: int) -> st.SearchStrategy[Any]:
    values = element_values(field, raw, version)
    if is_array(field):
        values = st.lists(values, max_size=3)
        if element_kind(field) == "int32":
            values |= st.integers(120, 140).map(lambda count: list(range(count)))
    if field.is_nullable_in(version):
        return st.none() | values
    if raw.metadata.get("kafka_type") == "datetime_i64" and type(None) in get_args(raw.type):
        return st.just(-1) | values
    return values


def element_values(field: Field, raw: Any, version: int) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        return messages(field.struct, element_type(raw.type), version)
    kind = raw.metadata["kafka_type"]
    if kind == "string":
        return TEXTS
    if kind in ("bytes", "records"):
        return BYTES
    return UUIDS if kind == "uuid" else NUMBERS[kind]


def to_kio(message: Any, kio_class: Any, version: int) -> Any:
    """The same message as an object of kio's class for this version."""
    values = {}
    for field, raw in paired_fields(type(message), kio_class, version):
        value = getattr(message, field.name)
        if is_array(field) and value is not None:
            values[raw.name] = tuple(element_to_kio(field, raw, each, version) for each in value)
        else:
            values[raw.name] = element_to_kio(field, raw, value, version)
    return kio_class(**values)


def element_to_kio(field: Field, raw: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.struct is not None:
        return to_kio(value, element_type(raw.type), version)
    match raw.metadata["kafka_type"]:
        case "uuid":
            return uuid.UUID(bytes=value) if value != bytes(16) else None
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return value * MILLISECOND
        case "datetime_i64":
            return None if value == -1 else EPOCH + value * MILLISECOND
        case _:
            return value


def kio_bytes(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def kio_read(kio_class: Any, data: bytes) -> Any:
    entity, size = entity_reader(kio_class)(data, 0)
    assert size == len(data)
    return entity


def paired_fields(cls: type[Message], kio_class: Any, version: int) -> Iterator[tuple[Field, Any]]:
    """Our fields of this version beside kio's: both stand in the order of the schema. Kafka's readers do not
    know the tags that we have added."""
    ours = [
        field
        for field in cls.FIELDS
        if field.is_in(version) and (field.tag is None or field.tag < OUR_TAGS_FROM)
    ]
    return zip(ours, dataclasses.fields(kio_class), strict=True)


def element_type(annotation: Any) -> Any:
    while get_args(annotation):
        annotation = next(arg for arg in get_args(annotation) if arg not in (type(None), Ellipsis))
    return annotation
