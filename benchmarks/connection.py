"""A blocking connection that sends prebuilt frames and reads whole answers."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Final, Self

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class Connection:
    """One connection; a request waits for its answer."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, frame: bytes | bytearray) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        """One answer without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        assert 0 < size <= ANSWER_BYTES_MAX, size
        return bytes(self._exactly(size))

    def request(self, frame: bytes | bytearray) -> bytes:
        self.send(frame)
        return self.receive()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            received = self._socket.recv_into(view)
            if received == 0:
                raise ConnectionError("the broker closed the connection")
            view = view[received:]
        return data
