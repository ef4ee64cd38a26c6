"""What compiled codecs call off their straight path: long varints, and the words for what is wrong."""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from millrace.wire.errors import MalformedRequest
from millrace.wire.schema_fields import Field, Message
from millrace.wire.schema_source import FORMATS, element_kind, is_array

STRING_LENGTH_MAX: Final = 0x7FFF
"""Kafka's own bound on the bytes of a string, whatever the encoding of its length could say."""

OBJECTS_PER_BYTE_MAX: Final = 24
"""Bytes of Python objects allowed per byte received. Honest arrays take up to 23 (the few denser ones are
short); without a bound, structs of two bytes would take sixty times their size."""
OBJECTS_BYTES_FREE: Final = 1 << 20
"""Allowed whatever the size of the request, so that short ones are never counted too strictly."""

SHORT_UVARINTS: Final = tuple(bytes((value,)) for value in range(128))


def long_uvarint(buffer: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits at `position`, and the position behind it."""
    value = shift = 0
    while shift < 35:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                break
            return value, position
        shift += 7
    raise MalformedRequest(f"the varint that ends at byte {position} is longer than 32 bits")


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return SHORT_UVARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def long_string_prefix(value: int) -> bytes:
    """The compact length (plus one) of a string over 126 bytes."""
    if value - 1 > STRING_LENGTH_MAX:
        raise struct.error(f"a string of {value - 1} bytes")
    return uvarint(value)


def bad_length(field: str, length: int, remaining: int) -> MalformedRequest:
    return MalformedRequest(f"{field}: {length} bytes announced, {remaining} remain")


def bad_count(field: str, count: int, remaining: int) -> MalformedRequest:
    return MalformedRequest(f"{field}: {count} elements announced, {remaining} bytes remain")


def too_dense(field: str, count: int) -> MalformedRequest:
    return MalformedRequest(f"{field}: {count} elements of so few bytes would take too much memory")


def bad_tag(struct_name: str, tag: int, size: int) -> MalformedRequest:
    return MalformedRequest(
        f"{struct_name}: tagged field {tag} does not fill its {size} bytes or exceeds the message"
    )


def trailing(message: str, remaining: int) -> MalformedRequest:
    return MalformedRequest(f"{message}: {remaining} bytes are left over")


def explain(message: object, cls: type[Message], version: int, cause: Exception) -> NoReturn:
    """Raise ValueError naming the field that could not be encoded."""
    fault = _find_fault(message, cls, version)
    raise ValueError(f"{cls.__name__} v{version}: {fault or cause}") from cause


def _find_fault(message: object, cls: type[Message], version: int) -> str | None:
    if not isinstance(message, cls):
        return f"{type(message).__name__} is no {cls.__name__}"
    for field in cls.FIELDS:
        if not field.is_in(version):
            continue
        value = getattr(message, field.name)
        if value is None:
            fault = None if field.is_nullable_in(version) else f"{field.name}: null is not allowed"
        elif is_array(field):
            fault = _find_fault_in_array(field, value, version)
        else:
            fault = _describe(field, field.name, value, version)
        if fault:
            return fault
    return None


def _find_fault_in_array(field: Field, values: object, version: int) -> str | None:
    if not isinstance(values, list | tuple):
        return f"{field.name}: {type(values).__name__} is no list"
    for index, value in enumerate(values):
        fault = _describe(field, f"{field.name}[{index}]", value, version)
        if fault:
            return fault
    return None


def _describe(field: Field, path: str, value: object, version: int) -> str | None:
    kind = element_kind(field)
    if field.struct is not None:
        inner = _find_fault(value, field.struct, version)
        return f"{path}.{inner}" if inner else None
    if kind == "string":
        if not isinstance(value, str):
            return f"{path}: {type(value).__name__} is no str"
        if len(value.encode(errors="replace")) > STRING_LENGTH_MAX:
            return f"{path}: longer than {STRING_LENGTH_MAX} bytes"
    elif kind in ("bytes", "records", "uuid"):
        if not isinstance(value, bytes | bytearray | memoryview):
            return f"{path}: {type(value).__name__} is no bytes"
        if kind == "uuid" and len(value) != 16:
            return f"{path}: {len(value)} bytes, not the 16 of a UUID"
    else:
        try:
            struct.pack(">" + FORMATS[kind], value)
        except struct.error as error:
            return f"{path}: {value!r} is no {kind} ({error})"
    return None
