"""A protocol client without opinions: sends any bytes, speaks every API with plain dicts.

kio is the oracle here: nothing of Millrace's own codecs takes part, so a fault in them cannot hide itself.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import socket
import struct
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any, Final, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

Plain = dict[str, Any]

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35
CREATE_PARTITIONS: Final = 37
INCREMENTAL_ALTER_CONFIGS: Final = 44
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TOPIC_PARTITIONS: Final = 75

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Closed(Exception):
    """The broker closed the connection."""


class RawConnection:
    def __init__(
        self, address: tuple[str, int], timeout_s: float = 60.0, source: tuple[str, int] | None = None
    ) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s, source_address=source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_correlation_id = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def send(self, api_key: int, version: int, fields: Mapping[str, Any]) -> int:
        """Send a request without waiting; its correlation id."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self.send_frame(encode_request(api_key, version, fields, correlation_id))
        return correlation_id

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def receive(self, api_key: int, version: int, correlation_id: int) -> Plain:
        return decode_response(api_key, version, self.receive_frame(), correlation_id)

    def call(self, api_key: int, version: int, fields: Mapping[str, Any] | None = None) -> Plain:
        return self.receive(api_key, version, self.send(api_key, version, fields or {}))

    def is_closed_by_peer(self, timeout_s: float = 60.0) -> bool:
        """Whether the broker ends this connection in time, instead of sending something or waiting."""
        self.socket.settimeout(timeout_s)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def _receive_exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                chunk = self.socket.recv(min(1 << 20, size - len(received)))
            except ConnectionResetError as reset:
                raise Closed("connection reset") from reset
            if not chunk:
                raise Closed(f"closed after {len(received)} of {size} bytes")
            received += chunk
        return bytes(received)


def encode_request(
    api_key: int, version: int, fields: Mapping[str, Any], correlation_id: int, client_id: str | None = "raw"
) -> bytes:
    """Header and body of one request, as kio writes them."""
    schema: Any = load_request_schema(api_key, version)
    header_schema: Any = schema.__header_schema__
    names = {
        "request_api_key": api_key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    known = {field.name for field in dataclasses.fields(header_schema)}
    header = header_schema(**{name: value for name, value in names.items() if name in known})
    buffer = io.BytesIO()
    entity_writer(header_schema)(buffer, header)
    entity_writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()


def decode_response(api_key: int, version: int, frame: bytes, correlation_id: int) -> Plain:
    schema: Any = load_response_schema(api_key, version)
    header, position = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation_id, (header.correlation_id, correlation_id)
    body, size = entity_reader(schema)(frame, position)
    assert position + size == len(frame), f"{len(frame) - position - size} bytes after the response"
    answer = plain(body)
    assert isinstance(answer, dict)
    return answer


def build(schema: Any, fields: Mapping[str, Any]) -> Any:
    """An instance of a kio class from plain values; unknown names are a mistake of the test."""
    hints = typing.get_type_hints(schema)
    known = {field.name: field for field in dataclasses.fields(schema)}
    unknown = set(fields) - set(known)
    assert not unknown, f"{schema.__name__} v{schema.__version__} has no {sorted(unknown)}: {sorted(known)}"
    return schema(**{name: _to_kio(hints[name], known[name], value) for name, value in fields.items()})


def plain(value: Any) -> Any:
    """A kio value as dicts, lists, ints, strings; error codes as their lower-case names."""
    if isinstance(value, ErrorCode):
        return value.name
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dt.timedelta):
        return round(value / dt.timedelta(milliseconds=1))
    if isinstance(value, dt.datetime):
        return round((value - _EPOCH) / dt.timedelta(milliseconds=1))
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


def _to_kio(hint: Any, field: dataclasses.Field[Any], value: Any) -> Any:
    if value is None:
        return None
    kafka_type = field.metadata.get("kafka_type", "")
    if kafka_type.startswith("timedelta"):
        return dt.timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        return _EPOCH + dt.timedelta(milliseconds=value)
    nested = _nested_class(hint)
    if nested is None:
        return tuple(value) if isinstance(value, list) else value
    if isinstance(value, list | tuple):
        return tuple(build(nested, item) for item in value)
    return build(nested, value)


def _nested_class(hint: Any) -> Any:
    """The kio class inside `X`, `X | None` or `tuple[X, ...]`, or None for primitives."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union, tuple):
        for argument in typing.get_args(hint):
            found = None if argument is Ellipsis else _nested_class(argument)
            if found is not None:
                return found
        return None
    return hint if dataclasses.is_dataclass(hint) else None
