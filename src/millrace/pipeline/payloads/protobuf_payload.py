"""Protobuf payloads: messages of a .proto file, or of a descriptor set that protoc has made of it.

Spark's workers get the compiled descriptors; only the driver compiles.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.client.errors import InvalidOption
from millrace.pipeline.payloads.schemas import SchemaSource, Undecodable, first_line, schema_path, schema_text

_COMPILE_TIMEOUT_S: Final = 60
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TYPES: Final[dict[int, DataType]] = {
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
}
_UNSIGNED_64: Final = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ProtobufPayload:
    """Payloads of one Protobuf message type."""

    descriptors: bytes
    message: str
    spark_type: StructType
    format: str = "protobuf"

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        descriptor = _pool(self.descriptors).FindMessageTypeByName(self.message)
        message_class = message_factory.GetMessageClass(descriptor)
        read = _message_reader(descriptor)

        def decode(value: bytes) -> dict[str, Any]:
            try:
                found = message_class.FromString(value)
            except DecodeError as error:
                raise Undecodable(f"not a {self.message} in Protobuf: {first_line(error)}") from error
            try:
                row: dict[str, Any] = read(found)
            except (OverflowError, ValueError) as error:
                # It is well-formed, but holds a time after the year 9999, or proto2 text that is not UTF-8.
                raise Undecodable(f"a {self.message} that no row can hold: {first_line(error)}") from error
            return row

        return decode

    def encoder(self) -> Callable[[dict[str, Any]], bytes]:
        descriptor = _pool(self.descriptors).FindMessageTypeByName(self.message)
        message_class = message_factory.GetMessageClass(descriptor)

        def encode(row: dict[str, Any]) -> bytes:
            message = message_class()
            try:
                _fill(message, row)
                encoded: bytes = message.SerializeToString(deterministic=True)
            except (TypeError, ValueError, EncodeError, AttributeError) as error:
                raise Undecodable(f"does not fit {self.message}: {first_line(error)}") from error
            return encoded

        return encode

    def check_encodable(self, columns: StructType) -> None:
        known = self.spark_type.fieldNames()
        extra = [name for name in columns.fieldNames() if name not in known]
        if extra:
            raise InvalidOption(f"column {extra[0]!r} is not in {self.message}, which has {', '.join(known)}")


def read_protobuf_schema(schema: SchemaSource, message: str | None) -> ProtobufPayload:
    if isinstance(schema, StructType):
        raise InvalidOption("the schema for Protobuf is a StructType: must be a .proto or a descriptor set")
    descriptors = _descriptors(schema)
    pool = _pool(descriptors)
    names = _message_names(descriptors)
    chosen = _choose_message(names, message)
    descriptor = pool.FindMessageTypeByName(chosen)
    return ProtobufPayload(descriptors, chosen, _struct_type(descriptor, ()))


def _descriptors(schema: str | bytes | Path) -> bytes:
    """A serialised FileDescriptorSet: as given, or compiled."""
    path = schema_path(schema)
    if path is not None and path.suffix != ".proto":
        try:
            return _checked(path.read_bytes(), str(path))
        except OSError as error:
            raise InvalidOption(f"schema file {path}: {error.strerror or error}") from error
    if isinstance(schema, bytes):
        return _checked(schema, "the descriptor set")
    if path is not None:
        schema_text(schema)
        return _compile(path)
    with tempfile.TemporaryDirectory(prefix="millrace-proto-") as directory:
        inline = Path(directory) / "inline.proto"
        inline.write_text(schema_text(schema))
        return _compile(inline)


def _checked(content: bytes, name: str) -> bytes:
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(content)
    except DecodeError:
        found = descriptor_pb2.FileDescriptorSet()
    if not found.file:
        raise InvalidOption(
            f"{name}: not a descriptor set; make one with protoc --include_imports --descriptor_set_out=FILE "
            "or give the .proto file"
        )
    return content


def _compile(path: Path) -> bytes:
    compiler = importlib.util.find_spec("grpc_tools")
    if compiler is None or not compiler.submodule_search_locations:
        raise InvalidOption(
            "a .proto schema needs its compiler: pip install grpcio-tools. Or give a descriptor set, made by "
            "protoc --include_imports --descriptor_set_out=FILE"
        )
    with tempfile.TemporaryDirectory(prefix="millrace-proto-") as directory:
        output = Path(directory) / "descriptors"
        includes = [str(path.parent), f"{compiler.submodule_search_locations[0]}/_proto"]
        finished = subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", "--include_imports"),
                *(f"-I{each}" for each in includes),
                f"--descriptor_set_out={output}",
                path.name,
            ],
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            check=False,
        )
        if finished.returncode:
            lines = finished.stderr.strip().splitlines()
            place = f"{path.name}:"
            first = next((line[line.index(place) :] for line in lines if place in line), "protoc failed")
            raise InvalidOption(f"the Protobuf schema does not compile: {first}")
        return output.read_bytes()


def _pool(descriptors: bytes) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _message_names(descriptors: bytes) -> list[str]:
    """Top-level messages of the last file, which is the one that was asked for; imports come before it."""
    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    prefix = f"{file.package}." if file.package else ""
    return [f"{prefix}{each.name}" for each in file.message_type]


def _choose_message(names: list[str], message: str | None) -> str:
    if message is None:
        if len(names) == 1:
            return names[0]
        raise InvalidOption(f"the Protobuf schema has {len(names)} messages: name one of {', '.join(names)}")
    found = [name for name in names if name == message or name.rpartition(".")[2] == message]
    if len(found) != 1:
        raise InvalidOption(
            f"message {message!r} is not in the Protobuf schema, which has {', '.join(names)}"
        )
    return found[0]


def _struct_type(descriptor: Descriptor, inside: tuple[str, ...]) -> StructType:
    if descriptor.full_name in inside:
        raise InvalidOption(
            f"the Protobuf schema is recursive at {descriptor.full_name}: a table has no such type"
        )
    within = (*inside, descriptor.full_name)
    return StructType([StructField(field.name, _field_type(field, within)) for field in descriptor.fields])


def _field_type(field: FieldDescriptor, inside: tuple[str, ...]) -> DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_field_type(entry["key"], inside), _field_type(entry["value"], inside))
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
        kind: DataType = (
            TimestampType()
            if field.message_type.full_name == _TIMESTAMP
            else _struct_type(field.message_type, inside)
        )
    else:
        kind = _TYPES[field.type]
    return ArrayType(kind, containsNull=False) if field.is_repeated else kind


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _message_reader(descriptor: Descriptor) -> Reader:
    """A function from messages of one type to rows. A field with presence that is absent becomes null."""
    plain = [(field.name, _value_reader(field)) for field in descriptor.fields if not field.has_presence]
    present = [(field.name, _value_reader(field)) for field in descriptor.fields if field.has_presence]

    def read(message: Any) -> dict[str, Any]:
        row = {name: reader(getattr(message, name)) for name, reader in plain}
        for name, reader in present:
            row[name] = reader(getattr(message, name)) if message.HasField(name) else None
        return row

    return read


def _value_reader(field: FieldDescriptor) -> Reader:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _single_reader(entry["key"]), _single_reader(entry["value"])
        return lambda values: [(key(name), value(values[name])) for name in values]
    single = _single_reader(field)
    return (lambda values: [single(each) for each in values]) if field.is_repeated else single


def _single_reader(field: FieldDescriptor) -> Reader:
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
        if field.message_type.full_name == _TIMESTAMP:
            return lambda stamp: (
                _EPOCH + dt.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
            )
        return _message_reader(field.message_type)
    if field.type == FieldDescriptor.TYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type in _UNSIGNED_64:
        return Decimal
    return lambda value: value


def _fill(message: Message, row: dict[str, Any]) -> None:
    """Set the fields of a message from a row; nulls are left out."""
    for name, value in row.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if _is_map(field):
            _fill_map(getattr(message, name), field, value)
        elif field.is_repeated:
            target = getattr(message, name)
            for each in value:
                if field.message_type is not None:
                    _fill_message(target.add(), field, each)
                else:
                    target.append(_scalar(field, each))
        elif field.message_type is not None:
            _fill_message(getattr(message, name), field, value)
        else:
            setattr(message, name, _scalar(field, value))


def _fill_map(target: Any, field: FieldDescriptor, values: Any) -> None:
    entry = field.message_type.fields_by_name
    for key, value in values.items() if isinstance(values, dict) else values:
        if entry["value"].message_type is not None:
            _fill_message(target[_scalar(entry["key"], key)], entry["value"], value)
        else:
            target[_scalar(entry["key"], key)] = _scalar(entry["value"], value)


def _fill_message(target: Any, field: FieldDescriptor, value: Any) -> None:
    if field.message_type.full_name == _TIMESTAMP:
        since = value - _EPOCH
        target.seconds = since.days * 86_400 + since.seconds
        target.nanos = since.microseconds * 1000
        return
    target.SetInParent()
    _fill(target, value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        if known is not None:
            return known.number
        if value.lstrip("-").isdecimal():
            return int(value)
        raise ValueError(f"field {field.name!r}: {value!r} is not one of {field.enum_type.name}'s values")
    return int(value) if isinstance(value, Decimal) else value
