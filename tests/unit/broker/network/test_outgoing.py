"""The sending side: whatever the peer takes and when, every byte leaves once and in order."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.network.outgoing import (
    COPY_STEP_BYTES,
    SENDFILE_MIN_BYTES,
    Chunk,
    OpenFile,
    Outgoing,
    OutgoingFailed,
)
from millrace.core.errors import MillraceError

CONTENT = random.Random(3).randbytes(8 * COPY_STEP_BYTES)


class Wire:
    """A socket pair between a transport that holds what it cannot send and a peer that reads when told."""

    def __init__(self, *, is_direct: bool = True, buffer_bytes: int = 32 * 1024) -> None:
        self._own, self._peer = socket.socketpair()
        self._own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self._own.setblocking(False)
        self._peer.setblocking(False)
        self._is_direct = is_direct
        self._held = bytearray()
        self.received = bytearray()
        self.out = Outgoing(cast("Any", self))
        self.out.begin()

    # As an asyncio transport.

    def get_extra_info(self, name: str) -> object:
        if name == "sslcontext":
            return None if self._is_direct else object()
        return self._own

    def set_write_buffer_limits(self, high: int, low: int | None = None) -> None:
        # A transport with TLS stalls with 0.
        assert (high, low) == ((0, None) if self._is_direct else (1, 0))

    def write(self, data: bytes) -> None:
        self._held += data
        self.flush()
        if self._held:
            self.out.pause()

    # The test's side.

    def is_held(self) -> bool:
        """Whether the peer has to read before anything else can be sent."""
        assert self.out.is_congested == bool(self._held)
        return self.out.is_congested

    def flush(self) -> None:
        try:
            while self._held:
                del self._held[: self._own.send(self._held)]
        except BlockingIOError:
            pass

    def drain(self) -> None:
        """Let the peer read all there is, and the transport go on, until nothing is left."""
        while True:
            try:
                data = self._peer.recv(1 << 20)
            except BlockingIOError:
                break
            assert data
            self.received += data
            was_congested = bool(self._held)
            self.flush()
            if was_congested and not self._held:
                self.out.resume()

    def leave(self) -> None:
        self._peer.close()

    def close(self) -> None:
        self.out.close()
        self._own.close()
        self._peer.close()


class DiskFile:
    """As the log's handles: with a descriptor to send from, or without."""

    def __init__(self, path: Path, *, has_descriptor: bool = True) -> None:
        self._number = os.open(path, os.O_RDONLY)
        self._has_descriptor = has_descriptor

    def close(self) -> None:
        os.close(self._number)

    def fileno(self) -> int:
        return self._number if self._has_descriptor else -1

    def read_at(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._number, size_bytes, position)


class BrokenFile:
    def fileno(self) -> int:
        return -1

    def read_at(self, position: int, size_bytes: int) -> bytes:
        raise MillraceError("the disk is gone")


class Slice:
    def __init__(self, file: OpenFile | None, position: int, size_bytes: int) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


@pytest.fixture(scope="module", params=[True, False], ids=["sendfile", "copied"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskFile]:
    path = tmp_path_factory.mktemp("outgoing") / "segment"
    path.write_bytes(CONTENT)
    file = DiskFile(path, has_descriptor=request.param)
    yield file
    file.close()


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "through the transport"])
def test_what_the_socket_takes_leaves_at_once(is_direct: bool) -> None:
    wire = Wire(is_direct=is_direct)
    wire.out.write(b"first ")
    wire.out.write(b"second")
    wire.drain()
    assert wire.received == b"first second"
    assert wire.out.sent_bytes == 12
    assert not wire.out.is_congested
    wire.close()


def test_what_it_does_not_take_leaves_when_there_is_room_and_nothing_overtakes_it(wire: Wire) -> None:
    large = CONTENT[: 4 * COPY_STEP_BYTES]
    wire.out.write(large)
    assert wire.is_held()
    wire.out.write(b"behind it")
    wire.out.write_chunks([b" and ", b"behind that"])
    wire.drain()
    assert wire.received == large + b"behind it and behind that"
    assert not wire.is_held()
    assert wire.out.sent_bytes == len(wire.received)


def test_small_slices_are_joined_with_the_bytes_around_them(
    wire: Wire, file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("a system call of its own")

    monkeypatch.setattr(os, "sendfile", refuse)
    wire.out.write_chunks([b"<", Slice(file, 7, 100), b">", Slice(file, 9, 0), Slice(None, 0, 0)])
    wire.drain()
    assert wire.received == b"<" + CONTENT[7:107] + b">"


def test_large_slices_keep_their_place_between_the_bytes(wire: Wire, file: DiskFile) -> None:
    size = 5 * COPY_STEP_BYTES + 1
    wire.out.write_chunks([b"<", Slice(file, 7, size), b">", Slice(file, 0, SENDFILE_MIN_BYTES), b"!"])
    assert wire.is_held(), "the peer has not read yet"
    wire.drain()
    assert wire.received == b"<" + CONTENT[7 : 7 + size] + b">" + CONTENT[:SENDFILE_MIN_BYTES] + b"!"
    assert wire.out.sent_bytes == len(wire.received)


def test_a_slice_that_its_file_no_longer_has_ends_the_connection(wire: Wire, file: DiskFile) -> None:
    """An answer that is shorter than it says would shift all that follow."""
    for size in (100, 2 * SENDFILE_MIN_BYTES):
        with pytest.raises(OutgoingFailed, match="no longer in its file"):
            wire.out.write_chunks([b"head", Slice(file, len(CONTENT) - size // 2, size)])


def test_a_slice_that_cannot_be_read_ends_the_connection(wire: Wire) -> None:
    for size in (100, SENDFILE_MIN_BYTES):
        with pytest.raises(OutgoingFailed, match="the disk is gone"):
            wire.out.write_chunks([b"head", Slice(BrokenFile(), 0, size)])


def test_a_peer_that_has_left_ends_the_connection(wire: Wire, file: DiskFile) -> None:
    wire.leave()
    with pytest.raises(OutgoingFailed):
        wire.out.write(b"nobody reads this")
    with pytest.raises(OutgoingFailed):
        wire.out.write_chunks([b"nor", Slice(file, 0, SENDFILE_MIN_BYTES), b"this"])


def test_closing_forgets_what_waits_and_leaves_the_socket_to_its_transport(wire: Wire) -> None:
    wire.out.write(CONTENT)
    wire.out.write(b"never sent")
    wire.out.close()
    wire.out.close()
    assert wire._own.fileno() >= 0
    wire._own.getsockname()
    wire.drain()
    assert wire.received == CONTENT, "what the transport holds is the transport's"


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(
        st.lists(
            st.one_of(
                st.binary(min_size=1, max_size=50),
                st.tuples(
                    st.integers(0, 1_000),
                    st.sampled_from([0, 1, SENDFILE_MIN_BYTES - 1, SENDFILE_MIN_BYTES, 2 * COPY_STEP_BYTES]),
                ),
            ),
            min_size=1,
            max_size=6,
        ),
        max_size=8,
    ),
    drains=st.sets(st.integers(0, 7)),
)
def test_bytes_and_slices_arrive_in_order_whenever_the_peer_reads(
    file: DiskFile, messages: list[list[bytes | tuple[int, int]]], drains: set[int]
) -> None:
    wire = Wire()
    expected = bytearray()
    for number, message in enumerate(messages):
        chunks: list[Chunk] = []
        for part in message:
            if isinstance(part, bytes):
                chunks.append(part)
                expected += part
            else:
                position, size = part
                chunks.append(Slice(file, position, size))
                expected += CONTENT[position : position + size]
        if len(chunks) == 1 and isinstance(chunks[0], bytes):
            wire.out.write(chunks[0])
        else:
            wire.out.write_chunks(chunks)
        if number in drains:
            wire.drain()
    wire.drain()
    assert wire.received == expected
    assert wire.out.sent_bytes == len(expected)
    wire.close()
