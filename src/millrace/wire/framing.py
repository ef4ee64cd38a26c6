"""Frames and request headers: what is known of a request before its body is decoded.

A frame is a 4-byte length and that many bytes: api key (2), api version (2), correlation id (4),
client id (nullable string), and from header version 2 on a block of tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from millrace.wire.errors import MalformedRequest

LENGTH: Final = struct.Struct(">i")
LENGTH_SIZE: Final = 4
REQUEST_HEAD: Final = struct.Struct(">hhih")
"""Api key, api version, correlation id, length of the client id (-1 for none)."""
REQUEST_HEAD_SIZE: Final = REQUEST_HEAD.size
RESPONSE_HEAD: Final = struct.Struct(">ii")
"""Length of the frame after itself, correlation id: response header version 0."""
FLEXIBLE_RESPONSE_HEAD: Final = struct.Struct(">iib")
"""The same with an empty block of tagged fields: response header version 1."""

Buffer = bytes | bytearray | memoryview
HeadReader = Callable[[Buffer, int], tuple[Any, ...]]
"""From a buffer and a position to what `head_reader` says."""


@lru_cache(maxsize=1_024)
def head_reader(client_id_bytes: int) -> HeadReader:
    """Reads heads with client ids of one length: api key and version as one number, the correlation id, and
    the client id behind its length, by which a connection sees at once that it is still the same client.
    There must be so many bytes."""
    return struct.Struct(f">Ii{2 + client_id_bytes}s").unpack_from


def read_uvarint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits and the position behind it."""
    value = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                break
            return value, position
        shift += 7
        if shift == 35:
            break
    raise MalformedRequest("a variable-length integer is cut short or longer than 32 bits")


def skip_tags(buffer: Buffer, position: int, end: int) -> int:
    """The position behind a block of tagged fields, none of which matters to the caller."""
    count, position = read_uvarint(buffer, position, end)
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position, end)
        size, position = read_uvarint(buffer, position, end)
        position += size
        if position > end:
            raise MalformedRequest("a tagged field is longer than the request")
    return position


def skip_client_id(buffer: Buffer, position: int, length: int, end: int, *, flexible: bool) -> int:
    """The position of the body: behind the client id and, in flexible headers, the tagged fields."""
    if length > 0:
        position += length
        if position > end:
            raise MalformedRequest(f"the client id has {length} bytes, more than the request")
    elif length < -1:
        raise MalformedRequest(f"the client id has a negative length: {length}")
    if not flexible:
        return position
    # Nearly every client sends no tagged fields here: one zero byte.
    if position < end and buffer[position] == 0:
        return position + 1
    return skip_tags(buffer, position, end)


def response_frame(correlation_id: int, body: bytes, *, flexible: bool) -> bytes:
    """A whole response: length, header, body."""
    if flexible:
        return FLEXIBLE_RESPONSE_HEAD.pack(len(body) + 5, correlation_id, 0) + body
    return RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + body


class NodeEndpoint(NamedTuple):
    """Where a broker is, in answers that send a client to another one."""

    node_id: int
    host: str
    port: int
    rack: str | None


def encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The tagged fields of a response that names other brokers: field 0, or none."""
    if not endpoints:
        return b"\0"
    parts = [uvarint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        name = host.encode()
        parts += [LENGTH.pack(node_id), uvarint(len(name) + 1), name, LENGTH.pack(port)]
        parts.append(b"\0" if rack is None else uvarint(len(rack.encode()) + 1) + rack.encode())
        parts.append(b"\0")
    body = b"".join(parts)
    return b"\1\0" + uvarint(len(body)) + body


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
