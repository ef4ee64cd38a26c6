"""One blocking connection to a broker: frames out, frames in. Knows no cluster and never tries again."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from millrace.client.errors import (
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    InvalidAnswer,
    NobodyListens,
    NotReached,
    TimedOut,
)
from millrace.client.exchange import BUFFER_BYTES, FRAME_BYTES_MAX, FRAME_BYTES_MIN, Exchange, bad_size
from millrace.client.questions import Questions, Work
from millrace.wire import schema
from millrace.wire.errors import MalformedRequest

if TYPE_CHECKING:
    import ssl

    from millrace.client.opening import Login, Opened
    from millrace.client.security import SecurityOptions

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
        self._login: Login | None = None
        self._renewed_at = 0.0
        """When to log in again, by the monotonic clock."""
        self._socket = self._connect(host, port)
        if tls is not None:
            from millrace.client.tls import secured

            self._socket = secured(self._socket, host, self.address, tls)

    def close(self) -> None:
        self._socket.close()

    def open_with(self, software: str, security: SecurityOptions) -> Opened:
        """Ask for versions, and log in where that is wanted: from then on before every session's end."""
        from millrace.client.opening import open_with

        opened = self.answers_to(open_with(self.address, software, security))
        self._keep(opened.login)
        return opened

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
                answer = question.run() if isinstance(question, Work) else self.ask(*question)
                question = questions.send(answer)
        except StopIteration as end:
            return cast("T", end.value)

    def send(self, api_key: int, version: int, body: bytes) -> int:
        """Send one request and return its correlation id, for `receive`."""
        # While answers are due, the next request's turn will do: there is time left in the session.
        if self._login is not None and not self._waiting and time.monotonic() >= self._renewed_at:
            self._log_in_again(self._login)
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

    def _keep(self, login: Login | None) -> None:
        after_s = None if login is None else login.renewed_after_s
        self._login = None if after_s is None else login
        self._renewed_at = 0.0 if after_s is None else time.monotonic() + after_s

    def _log_in_again(self, login: Login) -> None:
        self._login = None
        # The last answer may still be looked at, in the buffer where it is.
        buffer, self._buffer = self._buffer, bytearray(BUFFER_BYTES)
        try:
            self._keep(self.answers_to(login.again()))
        except ConnectionFailed:
            raise
        except ClientError as error:
            # Whoever opens the next connection learns whether it is for good.
            raise ConnectionClosed(self.address, str(error)) from error
        finally:
            self._buffer = buffer

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
