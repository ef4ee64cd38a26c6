"""The sending side of a connection: straight to the socket while it takes everything, through the
transport when not.

Records go from the page cache to the socket by `sendfile`. Small ones are read and joined with the bytes
around them instead, because one write of some kilobytes costs less than three system calls.

What the socket does not take goes to the transport, which waits for room. From then on the peer is congested,
and everything queues here, so that nothing overtakes what the transport still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from millrace.broker.network.pace import Pace
from millrace.core.errors import MillraceError

SENDFILE_MIN_BYTES: Final = 16 * 1024
"""Below this a copy is cheaper than a system call of its own."""
COPY_STEP_BYTES: Final = 64 * 1024
"""How much is copied at a time where `sendfile` cannot be used, or where the socket is full: the transport
says when it has sent a copy, and so when there is room again."""

TLS_STEP_BYTES: Final = 256 * 1024
"""With TLS there is no `sendfile`: all is copied, and larger steps cost less, as long as what is copied stays
in the processor's caches and in memory that the C library keeps (`broker/assembly/allocator.py`)."""

UNPACED: Final = b"reno"
"""A congestion control that every kernel has and every user may choose."""
TCP_CONGESTION: Final = 13
"""The number of the socket option on Linux. Python knows its name only there."""


class OpenFile(Protocol):
    """A file that stays readable for as long as somebody holds this object."""

    def fileno(self) -> int:
        """A descriptor to send from, or -1 where there is none."""

    def read_at(self, position: int, size_bytes: int) -> bytes: ...


class FileSlice(Protocol):
    """A range of a file, such as the log's slices."""

    file: OpenFile | None
    position: int
    size_bytes: int


class FileRange(NamedTuple):
    """What is left of a slice."""

    file: OpenFile
    position: int
    size_bytes: int


Chunk = bytes | FileSlice


class OutgoingFailed(Exception):
    """The socket is gone or a slice can no longer be read: the connection must end."""


class Outgoing:
    """Sends chunks in order. Its owner forwards the transport's pause_writing and resume_writing."""

    __slots__ = ("_backlog", "_socket", "_step_bytes", "_transport", "is_congested", "pace", "sent_bytes")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket = _direct_socket(transport)
        self._step_bytes = COPY_STEP_BYTES
        self._backlog: deque[bytes | FileRange] = deque()
        self.is_congested = False
        """Whether the peer has not yet taken what it was sent."""
        self.sent_bytes = 0
        self.pace: Pace | None = None
        """How fast the consumer reads; known for one that was sent large answers."""

    def begin(self, *, is_local: bool = False) -> None:
        """Have the transport say at once when it has to keep a byte: no direct write may overtake that. It
        may say so before this returns."""
        if self._transport.get_extra_info("sslcontext") is None:
            self._transport.set_write_buffer_limits(high=0)
        else:
            # With 0, a transport with TLS takes every write for one that is kept, and waits for ever.
            self._step_bytes = TLS_STEP_BYTES
            self._transport.set_write_buffer_limits(high=1, low=0)
        if is_local:
            self.leave_pacing_out()

    def leave_pacing_out(self) -> None:
        """Send to a peer on this machine as fast as it reads. A congestion control that paces (BBR, the
        default of some systems) sets a timer for every few packets. That takes half of the time that large
        answers cost, and gains nothing where no network is in between."""
        pseudo = self._transport.get_extra_info("socket")
        if pseudo is not None:
            with contextlib.suppress(OSError):
                pseudo.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, UNPACED)

    def write(self, data: bytes) -> None:
        """Send `data` now as far as the socket takes it, the rest as soon as it can."""
        if self.is_congested:
            self._backlog.append(data)
            return
        sock = self._socket
        if sock is None:
            self._transport.write(data)
            self.sent_bytes += len(data)
            return
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise OutgoingFailed(str(error)) from None
        self.sent_bytes += sent
        if sent < len(data):
            self._hand_over(data[sent:])

    def write_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Send bytes and slices in order."""
        self._backlog.extend(_join_small(chunks))
        if not self.is_congested:
            self._send_backlog()

    def pause(self) -> None:
        self.is_congested = True

    def resume(self) -> None:
        """The transport has sent all that it kept."""
        self.is_congested = False
        self._send_backlog()

    def close(self) -> None:
        """Forget the socket: its descriptor belongs to the transport, which closes it."""
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        self._backlog.clear()
        self.is_congested = True

    def _send_backlog(self) -> None:
        backlog = self._backlog
        while backlog and not self.is_congested:
            chunk = backlog.popleft()
            if not isinstance(chunk, bytes):
                self._send_slice(chunk)
            elif self._socket is not None and backlog:
                self._send_more(chunk)
            else:
                self.write(chunk)

    def _send_more(self, data: bytes) -> None:
        """Send bytes that others follow: the kernel joins them into full packets."""
        assert self._socket is not None
        try:
            sent = self._socket.send(data, socket.MSG_MORE)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise OutgoingFailed(str(error)) from None
        self.sent_bytes += sent
        if sent < len(data):
            self._hand_over(data[sent:])

    def _send_slice(self, chunk: FileRange) -> None:
        file, position, left = chunk
        sock = self._socket
        if sock is not None and file.fileno() >= 0:
            try:
                while left > 0:
                    sent = os.sendfile(sock.fileno(), file.fileno(), position, left)
                    if sent == 0:
                        raise OutgoingFailed(f"{left} bytes of a slice are no longer in its file")
                    position += sent
                    left -= sent
                    self.sent_bytes += sent
                return
            except BlockingIOError:
                pass
            except OSError as error:
                raise OutgoingFailed(str(error)) from None
        step = min(left, self._step_bytes)
        data = _read(file, position, step)
        if step < left:
            self._backlog.appendleft(FileRange(file, position + step, left - step))
        self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        """Let the transport wait for room; it calls pause_writing at once and resume_writing when all is
        gone."""
        self.sent_bytes += len(data)
        self._transport.write(data)


def _direct_socket(transport: asyncio.Transport) -> socket.socket | None:  # noqa: TID251
    """A socket object on the transport's own descriptor; None where bytes must pass through the transport."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    pseudo = transport.get_extra_info("socket")
    if pseudo is None or pseudo.fileno() < 0:
        return None
    # Not a socket of our own: the same descriptor, with `send` and its flags.
    return socket.socket(  # noqa: TID251
        pseudo.family, pseudo.type, pseudo.proto, fileno=pseudo.fileno()
    )


def _join_small(chunks: Sequence[Chunk]) -> list[bytes | FileRange]:
    joined: list[bytes | FileRange] = []
    run: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            run.append(chunk)
            continue
        file, size_bytes = chunk.file, chunk.size_bytes
        if file is None or size_bytes == 0:
            continue
        if size_bytes < SENDFILE_MIN_BYTES:
            run.append(_read(file, chunk.position, size_bytes))
            continue
        if run:
            joined.append(run[0] if len(run) == 1 else b"".join(run))
            run = []
        joined.append(FileRange(file, chunk.position, size_bytes))
    if run:
        joined.append(run[0] if len(run) == 1 else b"".join(run))
    return joined


def _read(file: OpenFile, position: int, size_bytes: int) -> bytes:
    try:
        data = file.read_at(position, size_bytes)
    except MillraceError as error:
        raise OutgoingFailed(str(error)) from None
    if len(data) != size_bytes:
        raise OutgoingFailed(f"{size_bytes - len(data)} bytes of a slice are no longer in its file")
    return data
