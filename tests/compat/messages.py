"""What the clients write and read: one message type, and a corpus that holds every awkward shape."""

from __future__ import annotations

import random
from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def as_message(self) -> Message:
        return Message(key=self.key, value=self.value, headers=self.headers, timestamp_ms=self.timestamp_ms)


def corpus(topic: str, now_ms: int) -> list[Message]:
    """Keys, headers, timestamps, empty and null parts; the topic's name is in the payloads."""
    source = random.Random(topic)
    name = topic.encode()
    every_byte = bytes(range(256))
    shapes: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"key", name + b" plain", ()),
        (None, name + b" without a key", ()),
        (b"", b"", ()),
        (b"tombstone", None, ()),
        (None, None, ()),
        (every_byte, name + every_byte, ()),
        ("schlüssel".encode(), name + " wért 値".encode(), (("überschrift", "wért".encode()),)),
        (b"h", name, (("a", b"1"), ("a", b"2"), ("empty", b""), ("binary", b"\xff\x01\xfe"))),
        (b"h", name, (("none", None), ("some", b"1"))),
        (b"squeezable", name * 1_500, ()),
        (b"random", source.randbytes(40_000), ()),
    ]
    shapes += [(b"n%d" % number, b"%s %d" % (name, number), ()) for number in range(100)]
    # Timestamps neither rise nor repeat in a simple way: a reader must not derive one from another.
    return [
        Message(key=key, value=value, headers=headers, timestamp_ms=now_ms - source.randrange(3_600_000))
        for key, value, headers in shapes
    ]
