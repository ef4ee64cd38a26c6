"""A connection to a broker inside an event loop, with many requests on their way at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from millrace.client.errors import (
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    InvalidAnswer,
    NobodyListens,
    NotReached,
    TimedOut,
)
from millrace.client.exchange import Answered, AnswerStream
from millrace.client.questions import Questions, Work
from millrace.core.override import override
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.errors import MalformedRequest

if TYPE_CHECKING:
    import ssl

    from millrace.client.opening import Login

log = logging.getLogger(__name__)

_LOGIN: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)

T = TypeVar("T")
C = TypeVar("C", bound="AsyncConnection")


class AsyncConnection(AnswerStream, asyncio.BufferedProtocol):
    """One connection. Made by `connect`, and never used again once it is lost."""

    def __init__(self, address: str, client_id: str) -> None:
        super().__init__(address, client_id)
        self.is_lost = False
        """Whether there will be no more answers; those who wait may not have been told yet."""
        self.on_lost: Callable[[Any], None] | None = None
        """Called with this connection, whatever its class, after those who wait."""
        self._transport: asyncio.Transport | None = None
        self._failure: ConnectionFailed | None = None
        self._held: list[bytes] | None = None
        """Frames that wait for a login that is under way again: a broker takes no other request meanwhile."""
        self._gone: asyncio.Event | None = None

    # Asking.

    def send(self, api_key: int, version: int, body: bytes, answered: Answered) -> None:
        """Send a request whose body is encoded already."""
        if self.is_lost or self._transport is None:
            answered(None)
            return
        frame = self.frame(api_key, version, body, answered)
        if self._held is not None and api_key not in _LOGIN:
            self._held.append(frame)
            return
        self._transport.write(frame)

    def ask(self, api_key: int, version: int, message: Any) -> asyncio.Future[Any]:
        """Send a request; the decoded answer, when it comes. Both raise ConnectionFailed."""
        if self.is_lost:
            raise self._failure or ConnectionClosed(self.address)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        decode = schema.response_decoder(api_key, version)

        def answered(body: memoryview | None) -> None:
            if waiting.done():
                return
            if body is None:
                waiting.set_exception(self._failure or ConnectionClosed(self.address))
                return
            try:
                waiting.set_result(decode(bytes(body), 0))
            except MalformedRequest as error:
                name = schema.api_name(api_key)
                failure = InvalidAnswer(self.address, f"sent an answer to {name} that is none: {error}")
                waiting.set_exception(failure)
                raise failure from error

        self.send(api_key, version, schema.request_encoder(api_key, version)(message), answered)
        return waiting

    async def answer_of(self, asked: asyncio.Future[T], timeout_s: float) -> T:
        """What was asked for over this connection; raises ConnectionFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asked
        except TimeoutError:
            # The next one tries a new connection: on one that stood still for long, the system sends again
            # only after a pause as long.
            self.abort()
            raise TimedOut(self.address, timeout_s) from None

    async def answers_to(self, questions: Questions[T], timeout_s: float) -> T:
        """Ask one question after the other; what comes of it in the end."""
        try:
            question = next(questions)
            while True:
                if isinstance(question, Work):
                    answer = await asyncio.get_running_loop().run_in_executor(None, question.run)
                else:
                    answer = await self.answer_of(self.ask(*question), timeout_s)
                question = questions.send(answer)
        except StopIteration as end:
            return cast("T", end.value)

    async def keep_logged_in(self, login: Login, timeout_s: float) -> None:
        """Log in again before a session ends, and the next, until the connection does. For a task of its
        owner. Other requests wait meanwhile; if the login fails, the connection ends and they with it."""
        gone = self._gone = asyncio.Event()
        while not self.is_lost and (after_s := login.renewed_after_s) is not None:
            try:
                async with asyncio.timeout(after_s):
                    await gone.wait()
                return
            except TimeoutError:
                pass
            login = await self._log_in_again(login, timeout_s)

    async def _log_in_again(self, login: Login, timeout_s: float) -> Login:
        held: list[bytes] = []
        self._held = held
        try:
            renewed = await self.answers_to(login.again(), timeout_s)
        except BaseException as error:
            if isinstance(error, ClientError):
                self._failure = ConnectionClosed(self.address, str(error))
            self.abort()
            raise
        self._held = None
        if self._transport is not None and not self.is_lost:
            self._transport.write(b"".join(held))
        return renewed

    def abort(self) -> None:
        """End the connection at once."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # The transport's side.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if exc is not None and self._failure is None:
            self._failure = ConnectionClosed(self.address, str(exc) or type(exc).__name__)
        self.end()
        if self._gone is not None:
            self._gone.set()
        if self.on_lost is not None:
            self.on_lost(self)

    @override
    def eof_received(self) -> bool:
        return False

    @override
    def give_up(self, failure: InvalidAnswer) -> None:
        log.warning("%s", failure)
        self._failure = failure
        self.abort()


async def connect(
    make: Callable[[str], C],
    host: str,
    port: int,
    *,
    timeout_s: float | None,
    tls: ssl.SSLContext | None = None,
) -> C:
    """The connection that `make` makes for an address, as soon as it stands; with `tls`, as soon as the other
    end has shown who it is.

    Raises NotReached; NobodyListens if that is what the other machine says; NotTrusted."""
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {} if tls is None else {"ssl": tls, "server_hostname": host}
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(lambda: make(address), host, port, **options)
    except ConnectionRefusedError as error:
        raise NobodyListens(address, error.strerror or str(error)) from error
    except OSError as error:
        if tls is not None:
            from millrace.client.tls import handshake_failure

            raise handshake_failure(address, error) from error
        raise NotReached(address, error.strerror or str(error) or type(error).__name__) from error
    return connection
