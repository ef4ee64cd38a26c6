"""One blocking connection to a broker: frames out, frames in. Knows no cluster and never tries again."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from millrace.client.errors import ConnectionClosed, InvalidAnswer, NobodyListens, NotReached, TimedOut
from millrace.client.exchange import BUFFER_BYTES, FRAME_BYTES_MAX, FRAME_BYTES_MIN, Exchange, bad_size
from millrace.wire import schema
from millrace.wire.errors import MalformedRequest

if TYPE_CHECKING:
    import ssl

    from millrace.client.opening import Questions

T = TypeVar("T")
_LENGTH_AND_ID: Final = struct.Struct(">ii")


class BlockingConnection(Exchange[None]):
    """Requests may be pipelined; answers come in the order of the requests. Not for several threads."""

    def __init__(
        self, host: str, port: int, *, client_id: str, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(f"{host}:{port}", client_id)
        self._timeout_s = timeout_s
        self._buffer = bytearray(BUFFER_BYTES)
        self._socket = self._connect(host, port)
        if tls is not None:
            from millrace.client.security import secured

            self._socket = secured(self._socket, host, self.address, tls)

    def close(self) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, message: object) -> Any:
        """Send one request and return its answer, decoded."""
        body = schema.request_encoder(api_key, version)(message)
        answer = bytes(self.receive(self.send(api_key, version, body)))
        try:
            return schema.response_decoder(api_key, version)(answer)
        except MalformedRequest as error:
            name = schema.api_name(api_key)
            raise InvalidAnswer(self.address, f"sent an answer to {name} that is none: {error}") from error

    def answers_to(self, questions: Questions[T]) -> T:
        """Ask one question after the other; what comes of it in the end."""
        try:
            question = next(questions)
            while True:
                question = questions.send(self.ask(*question))
        except StopIteration as end:
            return cast("T", end.value)

    def send(self, api_key: int, version: int, body: bytes) -> int:
        """Send one request and return its correlation id, for `receive`."""
        try:
            self._socket.sendall(self.frame(api_key, version, body, None))
        except OSError as error:
            self._fail(error)
        return self._last_id

    def receive(self, correlation_id: int) -> memoryview:
        """The body of the next answer, which must be the one asked for.

        The bytes are valid until the next call: large answers share one buffer that is used again and again.
        """
        head = bytearray(8)
        self._fill(memoryview(head))
        size, found_id = _LENGTH_AND_ID.unpack(head)
        if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
            raise bad_size(self.address, size)
        entry = self._waiting.pop(found_id, None)
        if entry is None or found_id != correlation_id:
            raise InvalidAnswer(self.address, f"answered request {found_id} instead of {correlation_id}")
        size -= 4
        if size > len(self._buffer):
            # A new one: the old buffer may still be looked at, and then it cannot grow.
            self._buffer = bytearray(size)
        body = memoryview(self._buffer)[:size]
        self._fill(body)
        return body[entry[0] - 4 :]

    def _connect(self, host: str, port: int) -> socket.socket:
        try:
            connected = socket.create_connection((host, port), timeout=self._timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except ConnectionRefusedError as error:
            raise NobodyListens(self.address, error.strerror or str(error)) from error
        except OSError as error:
            raise NotReached(self.address, error.strerror or str(error)) from error
        return connected

    def _fill(self, target: memoryview) -> None:
        position = 0
        end = len(target)
        try:
            while position < end:
                count = self._socket.recv_into(target[position:])
                if count == 0:
                    raise ConnectionClosed(self.address)
                position += count
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        if isinstance(error, TimeoutError):
            raise TimedOut(self.address, self._timeout_s) from error
        raise ConnectionClosed(self.address, error.strerror or str(error)) from error
