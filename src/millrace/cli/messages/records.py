"""Messages as text: lines with keys, JSON lines that can be read back, and templates.

The JSON form is the same for reading and writing. Bytes that are no UTF-8 text stand in a field whose name
ends in `_base64`:
    {"partition":0,"offset":7,"timestamp":1700000000000,"key":"k","value_base64":"/w==",
     "headers":[{"name":"h","value":"x"}]}
"""

from __future__ import annotations

import base64
import binascii
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from millrace.cli.moments import parse_timestamp_ms
from millrace.core.errors import MillraceError

Headers = list[tuple[str, bytes | None]]
JSON_FIELDS: Final = frozenset(
    ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers")
)
_BASE64: Final = "_base64"


class BadLine(MillraceError):
    """A line of input is no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, on its way in or out."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None
    offset: int | None = None
    topic: str = ""


def from_line(line: bytes, *, key_separator: bytes | None, is_base64: bool, headers: Headers) -> Message:
    """A message from one line without its line end; with a separator, the key stands in front of it."""
    key: bytes | None = None
    value = line
    if key_separator is not None:
        key, found, value = line.partition(key_separator)
        if not found:
            raise BadLine(f"no key separator {key_separator.decode(errors='replace')!r} in the line")
    if is_base64:
        key = None if key is None else _decode_base64(key, "the key")
        value = _decode_base64(value, "the value")
    return Message(key=key, value=value, headers=headers)


def from_json(line: bytes, *, headers: Headers) -> Message:
    """A message from a JSON line; `headers` are added to its own."""
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadLine(
            f'not an object such as {{"key": "k", "value": "v"}}: {line[:40].decode(errors="replace")}'
        )
    unknown = sorted(document.keys() - JSON_FIELDS)
    if unknown:
        raise BadLine(f"unknown field {unknown[0]!r}; the fields are {', '.join(sorted(JSON_FIELDS))}")
    partition = document.get("partition")
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise BadLine(f"the partition is a number from 0, not {partition!r}")
    return Message(
        key=_bytes_field(document, "key"),
        value=_bytes_field(document, "value"),
        headers=_headers_field(document.get("headers")) + headers,
        partition=partition,
        timestamp_ms=_timestamp_field(document.get("timestamp")),
    )


def to_json(message: Message, *, is_base64: bool) -> str:
    """The JSON line of a message, which `from_json` reads back."""
    document: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
    }
    document |= _text_field("key", message.key, is_base64=is_base64)
    document |= _text_field("value", message.value, is_base64=is_base64)
    if message.headers:
        document["headers"] = [
            {"name": name} | _text_field("value", value, is_base64=is_base64)
            for name, value in message.headers
        ]
    return orjson.dumps(document).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumns:
    """What stands in front of the value in the text format, in this order."""

    timestamps: bool = False
    offsets: bool = False
    headers: bool = False
    keys: bool = False
    separator: str = "\t"
    is_base64: bool = False

    def render(self, message: Message) -> str:
        columns: list[str] = []
        if self.timestamps:
            columns.append(format_time(message.timestamp_ms))
        if self.offsets:
            columns.append(f"{message.partition}:{message.offset}")
        if self.headers:
            columns.append(format_headers(message.headers))
        if self.keys:
            columns.append(show_bytes(message.key, is_base64=self.is_base64))
        columns.append(show_bytes(message.value, is_base64=self.is_base64))
        return self.separator.join(columns)


TEMPLATE_FIELDS: Final[dict[str, Callable[[Message], object]]] = {
    "topic": lambda message: message.topic,
    "partition": lambda message: message.partition,
    "offset": lambda message: message.offset,
    "timestamp": lambda message: message.timestamp_ms,
    "time": lambda message: format_time(message.timestamp_ms),
    "key": lambda message: show_bytes(message.key, is_base64=False),
    "value": lambda message: show_bytes(message.value, is_base64=False),
    "key_base64": lambda message: show_bytes(message.key, is_base64=True),
    "value_base64": lambda message: show_bytes(message.value, is_base64=True),
    "size": lambda message: len(message.value or b""),
    "headers": lambda message: format_headers(message.headers),
}


def template_renderer(template: str) -> Callable[[Message], str]:
    """Compile a template such as `{partition}:{offset} {key}={value}`; `unescape` knows the escapes."""
    try:
        parts = list(string.Formatter().parse(unescape(template)))
    except ValueError as error:
        raise BadLine(f"template {template!r}: {error}") from error
    pieces: list[str | Callable[[Message], object]] = []
    for text, name, spec, conversion in parts:
        if text:
            pieces.append(text)
        if name is None:
            continue
        if name not in TEMPLATE_FIELDS or spec or conversion:
            wrong = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise BadLine(f"template: no field {{{wrong}}}; the fields are {', '.join(TEMPLATE_FIELDS)}")
        pieces.append(TEMPLATE_FIELDS[name])
    return lambda message: "".join(
        piece if isinstance(piece, str) else str(piece(message)) for piece in pieces
    )


def unescape(text: str) -> str:
    """Replace the escapes \\t, \\n, \\r, \\0 and \\\\; anything else behind a backslash stays as it is."""
    escapes = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
    result: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            result.append(character)
            continue
        following = next(characters, "")
        result.append(escapes.get(following, "\\" + following))
    return "".join(result)


def parse_header(word: str) -> tuple[str, bytes | None]:
    """`name=value`, or `name` alone for a header without a value."""
    name, separator, value = word.partition("=")
    return name, value.encode(errors="surrogateescape") if separator else None


def format_headers(headers: Headers) -> str:
    return ",".join(
        name if value is None else f"{name}={show_bytes(value, is_base64=False)}" for name, value in headers
    )


def format_time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return "-"
    return (
        datetime.fromtimestamp(timestamp_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def show_bytes(data: bytes | None, *, is_base64: bool) -> str:
    """Bytes for a terminal or a pipe: what is no UTF-8 leaves the process as it came."""
    if data is None:
        return ""
    if is_base64:
        return base64.b64encode(data).decode()
    return data.decode(errors="surrogateescape")


def _decode_base64(text: str | bytes, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadLine(f"{what} is not base64: {error}") from error


def _bytes_field(document: dict[str, Any], name: str) -> bytes | None:
    encoded = document.get(name + _BASE64)
    if encoded is not None:
        if name in document:
            raise BadLine(f"both {name!r} and {name + _BASE64!r} are given")
        if not isinstance(encoded, str):
            raise BadLine(f"{name + _BASE64!r} is a string, not {encoded!r}")
        return _decode_base64(encoded, repr(name + _BASE64))
    content = document.get(name)
    if content is None:
        return None
    # A value that is JSON itself may be written as such: {"value": {"amount": 3}}.
    return content.encode() if isinstance(content, str) else orjson.dumps(content)


def _headers_field(content: Any) -> Headers:
    if content is None:
        return []
    if isinstance(content, dict):
        return [(name, _bytes_field({"value": value}, "value")) for name, value in content.items()]
    if not isinstance(content, list):
        raise BadLine(f'headers are a list of {{"name": ..., "value": ...}}, not {content!r}')
    return [_header_entry(entry) for entry in content]


def _header_entry(entry: Any) -> tuple[str, bytes | None]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise BadLine(f'a header is {{"name": ..., "value": ...}}, not {entry!r}')
    return entry["name"], _bytes_field(entry, "value")


def _timestamp_field(content: Any) -> int | None:
    if content is None:
        return None
    if isinstance(content, int) and not isinstance(content, bool):
        return content
    if isinstance(content, str):
        try:
            return parse_timestamp_ms(content)
        except ValueError as error:
            raise BadLine(f"timestamp: {error}") from error
    raise BadLine(f"a timestamp is milliseconds or an ISO time, not {content!r}")


def _text_field(name: str, data: bytes | None, *, is_base64: bool) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    if not is_base64:
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            pass
    return {name + _BASE64: base64.b64encode(data).decode()}


def headers_of(
    headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None,
) -> Headers:
    """Headers as confluent-kafka hands them out."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs or ()]
