"""What cannot be served ends its connection with a reason, and is counted by its kind."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.network.outgoing import OutgoingFailed
from millrace.broker.network.refusals import api_refusal, failure, frame_refusal
from millrace.wire.errors import MalformedRequest


class Server(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(frame_bytes_max=1_000, is_servable=lambda key, _version: key < 80, refused=[])

    def count_refused(self, reason: str) -> None:
        self.refused.append(reason)


def head(key: int) -> memoryview:
    return memoryview(struct.pack(">ihhih", 100, key, 0, 7, -1))


@pytest.mark.parametrize(
    "received, size, said, kind",
    [
        (memoryview(b"GET "), 0x47455420, "this looks like HTTP", "frame_size"),
        (memoryview(b"\0\0\0\x02"), 2, "allowed are 10 to 1000", "frame_size"),
        (head(99), 100, "api key 99 version 0", "api"),
    ],
)
def test_frames_that_nobody_serves(received: memoryview, size: int, said: str, kind: str) -> None:
    server: Any = Server()
    assert said in (frame_refusal(server, received, size) or "")
    assert server.refused == [kind]


def test_a_frame_that_may_still_come() -> None:
    server: Any = Server()
    assert frame_refusal(server, head(1), 100) is None
    assert frame_refusal(server, head(99)[:8], 100) is None, "its header is not there yet"
    assert server.refused == []


@pytest.mark.parametrize(
    "error, said, kinds",
    [
        (MalformedRequest("cut off"), "malformed request: cut off", ["malformed"]),
        (OutgoingFailed("gone"), "gone", []),
        (KeyError("a bug"), "internal error", ["failed"]),
    ],
)
def test_failures(error: Exception, said: str, kinds: list[str]) -> None:
    server: Any = Server()
    assert failure(server, error, "host") == said
    assert server.refused == kinds
    assert "api key 3" in api_refusal(server, 3, 9)
