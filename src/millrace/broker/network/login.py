"""Logins: the shell of `security/sasl/session.py` on a connection.

Until a client has logged in, its frames come here and not to the handlers: each becomes an event of the
session, and what the session says is done. What is dear to compute runs in a thread of a lane of its own, and
the answer to a failed login waits, while nothing more is read from the connection.

A session that has no end costs nothing after the login: the connection forgets that there was one. One that
ends is looked at whenever something is received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from millrace.broker.network.context import RequestContext
from millrace.broker.network.first_bytes import hint_from
from millrace.broker.network.requests import Slot
from millrace.broker.network.seldom import Seldom
from millrace.security.sasl import session as sasl
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.errors import MalformedRequest
from millrace.wire.framing import LENGTH, REQUEST_HEAD, REQUEST_HEAD_SIZE, response_frame, skip_client_id
from millrace.wire.messages.api_versions import ApiVersionsResponse
from millrace.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.wire.messages.sasl_handshake import SaslHandshakeResponse

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.broker.network.requests import Request
    from millrace.broker.network.server import Server
    from millrace.core.clock import Clock
    from millrace.security.principals import Identity

log = logging.getLogger(__name__)

WAITING_MAX: Final = 2_000
"""Logins of a listener that wait for a thread. Further ones fail: nobody fills our memory by guessing."""
NO_MECHANISM: Final = "none"
"""What a login is counted under that ended before the client had named its mechanism."""

LoginHook = Callable[["Connection", str, "Identity | None", str], None]
"""Told of every login: the connection, the mechanism, who it is or None, and why it failed. Who a client only
claimed to be, its session knows."""


@dataclass(slots=True)
class LoginCounts:
    """How the logins by one mechanism ended."""

    succeeded: int = 0
    failed: int = 0
    repeated: int = 0
    """Re-authentications that succeeded."""


@dataclass(slots=True)
class ListenerLogins:
    """The logins of one listener: what clients may do, who does the work, and what was counted."""

    listener: str
    settings: sasl.SaslSettings
    """Replaced when the configuration is; connections keep those that they began with."""
    clock: Clock
    lane: Executor | None
    """Where the dear work is done; None where there are no threads: then the loop does it."""
    told: LoginHook | None = None
    refuses: Callable[[Identity], str | None] | None = None
    """Why somebody who has shown who they are cannot come in now, if they cannot."""
    counts: dict[str, LoginCounts] = field(default_factory=dict)
    expired_killed_count: int = 0
    """Connections that were ended since their session had ended."""
    waiting_count: int = 0
    seldom: Seldom = field(default_factory=lambda: Seldom(log))

    def begin(self, connection: Connection, server: Server) -> Login:
        return Login(connection, server, self)

    def count_of(self, mechanism: str) -> LoginCounts:
        return self.counts.setdefault(mechanism or NO_MECHANISM, LoginCounts())

    async def run(self, work: Callable[[], Any]) -> Any:
        """Do the work where it holds nobody up. Raises RuntimeError where too much waits already."""
        if self.lane is None:
            return work()
        if self.waiting_count >= WAITING_MAX:
            raise RuntimeError(f"{self.waiting_count} logins wait already")
        self.waiting_count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.lane, work)
        finally:
            self.waiting_count -= 1


class Login:
    """The login of one connection, and its session for as long as that may end."""

    __slots__ = ("_connection", "_header", "_logins", "_server", "_versions", "began_loop_s", "session")

    def __init__(self, connection: Connection, server: Server, logins: ListenerLogins) -> None:
        self._connection = connection
        self._server = server
        self._logins = logins
        self.began_loop_s = connection.loop.time()
        self.session = sasl.SaslSession(logins.settings)
        self._header = (0, 0, 0)
        """Api key, version and correlation id of the request that is being handled."""
        self._versions: ApiVersionsResponse | None = None

    @property
    def is_complete(self) -> bool:
        return self.session.state is sasl.State.COMPLETE

    def is_overdue(self, loop_s: float, limit_s: float) -> bool:
        """Whether the first login has taken too long."""
        return self.session.identity is None and loop_s - self.began_loop_s > limit_s

    # Frames.

    def take_frames(self, buffer: memoryview, end: int) -> tuple[int, bool]:
        """Handle the frames that belong to a login; returns how many bytes are done with, and whether what
        follows is for the handlers."""
        if self.is_complete:
            return (0, True) if not self._is_over(buffer, end) else (end, False)
        connection = self._connection
        position = 0
        while end - position >= LENGTH.size and not connection.is_held:
            (size,) = LENGTH.unpack_from(buffer, position)
            start = position + LENGTH.size
            if not 0 <= size <= self._logins.settings.token_bytes_max:
                self._refuse_size(bytes(buffer[position:start]), size)
                return end, False
            stop = start + size
            if stop > end:
                break
            position = stop
            connection.frames_count += 1
            self._react(self.session.receive(self._event(buffer, start, stop), self._now()))
            if self.session.state is sasl.State.COMPLETE:
                return position, not connection.is_held
        return position, False

    def begin_again(self, request: Request, mechanism: str) -> None:
        """SaslHandshake on a connection that is logged in (KIP-368)."""
        self._header = (int(ApiKey.SASL_HANDSHAKE), request.route.version, request.correlation_id)
        event = sasl.HandshakeAsked(request.route.version, mechanism)
        self._react(self.session.receive(event, self._now()))
        if not self.is_complete and not self._connection.is_held:
            # What is received behind it belongs to the login again, and not to the handlers.
            self._connection.run_ordered(_nothing())

    def _is_over(self, buffer: memoryview, end: int) -> bool:
        """Whether the session has ended and the next request is no attempt to log in again."""
        if not self.session.is_expired(self._connection.loop.time()):
            return False
        if end < LENGTH.size + REQUEST_HEAD_SIZE:
            return False
        if REQUEST_HEAD.unpack_from(buffer, LENGTH.size)[0] == ApiKey.SASL_HANDSHAKE:
            return False
        self._logins.expired_killed_count += 1
        self._connection.abort("its session has expired, and it did not log in again")
        return True

    def _refuse_size(self, first_bytes: bytes, size: int) -> None:
        hint = hint_from(first_bytes)
        if hint is not None or size < 0:
            self._server.count_refused("frame_size")
            self._connection.abort(f"a frame of {size} bytes before the login: {hint or 'not a size'}")
            return
        self._react(self.session.receive(sasl.TooLarge(), self._now()))

    def _event(self, buffer: memoryview, start: int, stop: int) -> sasl.Event:
        """What the client does with this frame."""
        if self.session.expects_raw_token:
            return sasl.TokenSent(None, bytes(buffer[start:stop]))
        if stop - start < REQUEST_HEAD_SIZE:
            return sasl.Unreadable("too short")
        key, version, correlation_id, client_id_size = REQUEST_HEAD.unpack_from(buffer, start)
        self._header = (key, version, correlation_id)
        route = self._server.dispatcher.find(key, version)
        if route is None:
            if key == ApiKey.API_VERSIONS:
                return sasl.VersionsAsked(is_known_version=False)
            return sasl.Unreadable(f"api key {key} version {version} is not served here")
        if key not in _OF_LOGINS:
            return sasl.OtherAsked(ApiKey(key).name)
        try:
            body = skip_client_id(
                buffer, start + REQUEST_HEAD_SIZE, client_id_size, stop, flexible=route.flexible_request
            )
            request: Any = schema.request_decoder(key, version)(buffer[:stop], body)
        except MalformedRequest as error:
            return sasl.Unreadable(str(error))
        if key == ApiKey.SASL_HANDSHAKE:
            return sasl.HandshakeAsked(version, request.mechanism)
        if key == ApiKey.SASL_AUTHENTICATE:
            return sasl.TokenSent(version, request.auth_bytes)
        connection = self._connection
        context = RequestContext(
            version, None, connection.endpoint, connection.services, connection.decisions
        )
        self._versions = route.handle(context, request)
        return sasl.VersionsAsked(is_valid=not self._versions.error_code)

    # What the session wants.

    def _react(self, reaction: sasl.Reaction) -> None:
        close = reaction.close
        if reaction.work is not None or (close is not None and close.delay_ms > 0):
            self._connection.run_ordered(self._conclude_later(reaction))
        else:
            self._conclude(reaction)

    async def _conclude_later(self, reaction: sasl.Reaction) -> None:
        while reaction.work is not None:
            try:
                result = await self._logins.run(reaction.work.run)
            except Exception as error:  # noqa: BLE001 - the edge of a login: it fails, and says so in the log
                self._logins.seldom.tell(
                    self._connection.loop.time(), "a login could not be checked", error=repr(error)
                )
                reaction = self.session.abandon("it could not be checked")
            else:
                reaction = self.session.resume(result, self._now())
        if reaction.close is not None:
            await asyncio.sleep(reaction.close.delay_ms / 1000)
        self._conclude(reaction)

    def _conclude(self, reaction: sasl.Reaction) -> None:
        connection, logins = self._connection, self._logins
        if reaction.identity is not None and connection.is_closing:
            # It ended while a thread was at work. Nobody comes in, and nothing may be counted for one who has
            # been forgotten already.
            return
        if reaction.identity is not None:
            refusal = None if logins.refuses is None else logins.refuses(reaction.identity)
            if refusal is not None:
                # Not as a failed login: the client is right, and is to try again.
                self._server.count_refused("audit")
                connection.abort(refusal)
                return
            self._succeeded(reaction.identity)
        if reaction.answer is not None:
            frame = self._encode(reaction.answer)
            if frame is not None:
                connection.complete(Slot(connection), frame)
        close = reaction.close
        if close is None:
            return
        if not close.is_failed_login:
            self._server.count_refused("login")
            connection.abort(close.reason)
            return
        mechanism = self.session.mechanism
        logins.count_of(mechanism).failed += 1
        if logins.told is not None:
            logins.told(connection, mechanism, None, close.reason)
        logins.seldom.tell(
            connection.loop.time(),
            "login failed",
            peer=connection.endpoint.peer_host,
            listener=logins.listener,
            mechanism=mechanism or NO_MECHANISM,
            reason=close.reason,
        )
        connection.close()

    def _succeeded(self, identity: Identity) -> None:
        connection, logins = self._connection, self._logins
        counts = logins.count_of(self.session.mechanism)
        if connection.decisions.identity.mechanism is None:
            counts.succeeded += 1
        else:
            counts.repeated += 1
        connection.authenticated_as(identity)
        if self.session.expires_loop_s is None:
            connection.login = None
        if logins.told is not None:
            logins.told(connection, self.session.mechanism, identity, "")
        log.debug(
            "logged in",
            extra={
                "peer": connection.endpoint.peer_host,
                "principal": str(identity.principal),
                "mechanism": self.session.mechanism,
            },
        )

    def _encode(self, answer: sasl.SaslAnswer) -> bytes | None:
        key, version, correlation_id = self._header
        match answer:
            case sasl.RawAnswer(data):
                return LENGTH.pack(len(data)) + data
            case sasl.VersionsAnswer(ErrorCode.UNSUPPORTED_VERSION):
                return self._server.answer_unserved(key, version, correlation_id)
            case sasl.VersionsAnswer(ErrorCode.NONE | ErrorCode.INVALID_REQUEST):
                response: Any = self._versions
            case sasl.HandshakeAnswer(error, mechanisms):
                response = SaslHandshakeResponse(error_code=error, mechanisms=list(mechanisms))
            case sasl.TokenAnswer(error, message, data, lifetime_ms):
                response = SaslAuthenticateResponse(
                    error_code=error,
                    error_message=message,
                    auth_bytes=data,
                    session_lifetime_ms=lifetime_ms,
                )
            case _:
                kind = schema.message_class(key, "Response")
                if not any(field.name == "error_code" and field.is_in(version) for field in kind.FIELDS):
                    # There is no one place for an error in it: the end of the connection has to do.
                    return None
                response = kind()
                response.error_code = answer.error
        flexible = schema.response_header_version(key, version) >= 1
        return response_frame(
            correlation_id, schema.response_encoder(key, version)(response), flexible=flexible
        )

    def _now(self) -> sasl.Moment:
        return sasl.Moment(self._logins.clock.wall_ms(), self._connection.loop.time())


_OF_LOGINS: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


async def _nothing() -> None:
    """Only the next turn of the loop."""
