"""Valid frames for every decoder, made from the schema and a seed, and the ways in which they are damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from millrace.wire import schema
from millrace.wire.api_keys import API_SCHEMAS, ApiKey
from millrace.wire.fetch_codec import decode_request as decode_fetch
from millrace.wire.produce_codec import decode_request as decode_produce
from millrace.wire.schema_encoder import compile_encoder
from millrace.wire.schema_fields import Field, Message
from millrace.wire.schema_source import FORMATS, element_kind, is_array

COUNTS: Final = (
    b"\x7f\xff\xff\xff",  # 2^31 - 1 elements
    b"\xff\xff\xff\xff",  # null
    b"\xff\xff\xff\xfe",  # a negative length that is not null
    b"\x80\x00\x00\x00",
    b"\x00\x01\x00\x00",
    b"\x7f\xff",
    b"\xff\xfe",
    b"\x80\x00",
    b"\xff\xff\xff\xff\x0f",  # compact: 2^32 - 1
    b"\xff\xff\xff\xff\x07",  # compact: 2^31 - 1
    b"\xff\xff\xff\xff\x7f",  # compact: more than 32 bits in five bytes
    b"\xff\xff\xff\xff\xff\x01",  # compact: six bytes
    b"\x80\x80\x80\x80\x00",  # compact: zero in five bytes
    b"\x80\x80\x04",  # compact: 65,535 elements
)
NUMBERS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


class Target(NamedTuple):
    """One decoder for one version, with what makes valid frames for it."""

    label: str
    decode: Callable[..., object]
    encode: Callable[[Any], bytes]
    cls: type[Message]
    version: int


def all_targets() -> Iterator[Target]:
    yield from _hand_made_targets()
    for api_key, api in API_SCHEMAS.items():
        for version in range(api.version_min, api.version_max + 1):
            yield Target(
                f"{api.name} request v{version}",
                schema.request_decoder(api_key, version),
                schema.request_encoder(api_key, version),
                schema.message_class(api_key, "Request"),
                version,
            )
            yield Target(
                f"{api.name} response v{version}",
                schema.response_decoder(api_key, version),
                # We leave out the unfolding of responses: random values need not agree with each other.
                compile_encoder(
                    schema.message_class(api_key, "Response"),
                    version,
                    flexible=schema.is_flexible(api_key, version),
                ),
                schema.message_class(api_key, "Response"),
                version,
            )


def _hand_made_targets() -> Iterator[Target]:
    for api_key, decode_request in ((ApiKey.PRODUCE, decode_produce), (ApiKey.FETCH, decode_fetch)):
        first, last = schema.versions(api_key)
        for version in range(first, last + 1):
            yield Target(
                f"hand-made {schema.api_name(api_key)} request v{version}",
                partial(_decode_view, decode_request, version),
                schema.request_encoder(api_key, version),
                schema.message_class(api_key, "Request"),
                version,
            )


def _decode_view(decode_request: Callable[..., object], version: int, frame: bytes) -> object:
    return decode_request(memoryview(frame), 0, len(frame), version)


def valid_frame(target: Target, chance: random.Random) -> bytes:
    return target.encode(_message(target.cls, target.version, chance))


def damaged(frame: bytes, chance: random.Random) -> bytes:
    """`frame` with one to four faults."""
    data = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data += chance.randbytes(chance.randint(1, 40))
            case 3:
                count = chance.choice(COUNTS)
                data[at : at + len(count)] = count
            case 4:
                data[at:at] = chance.choice(COUNTS)
            case 5:
                del data[at : at + chance.randint(1, 8)]
            case _:
                data[at:at] = data[at : at + chance.randint(1, 30)] * chance.randint(1, 50)
    return bytes(data)


def dense_frames(frame: bytes, chance: random.Random, size_bytes: int) -> Iterator[bytes]:
    """Frames that announce as many of the smallest elements as their bytes could hold."""
    at = chance.randrange(len(frame) + 1)
    for filler in (0, 1, 2):
        for head in (b"", frame[:at]):
            rest = bytes((filler,)) * size_bytes
            for divisor in (1, 2, 4, 20):
                count = size_bytes // divisor
                yield head + _uvarint(count) + rest
                yield head + struct.pack(">i", count) + rest


def _message(cls: type[Message], version: int, chance: random.Random) -> object:
    values: dict[str, object] = {}
    for field in cls.FIELDS:
        if not field.is_in(version) or (field.tag is not None and chance.random() < 0.5):
            continue
        if field.is_nullable_in(version) and chance.random() < 0.2:
            values[field.name] = None
        elif is_array(field):
            values[field.name] = [
                _value(field, version, chance) for _ in range(chance.choice((0, 1, 1, 2, 5)))
            ]
        else:
            values[field.name] = _value(field, version, chance)
    return cls(**values)


def _value(field: Field, version: int, chance: random.Random) -> object:
    kind = element_kind(field)
    if field.struct is not None:
        return _message(field.struct, version, chance)
    if kind in NUMBERS:
        return chance.choice((0, 1, -1, chance.getrandbits(NUMBERS[kind])))
    if kind == "string":
        return chance.choice(("", "a", "orders", "Grüße", "x" * chance.randrange(300)))
    if kind == "bool":
        return chance.random() < 0.5
    if kind == "float64":
        return chance.random()
    return chance.randbytes(16 if kind in FORMATS else chance.randrange(40)) if kind != "uint16" else 9092


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
