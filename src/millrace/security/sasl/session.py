"""The server's side of logging in on one connection: which request may come when, and what it is answered.

The states are those of Kafka's SaslServerAuthenticator:

    INITIAL ── ApiVersions ──> HANDSHAKE ── SaslHandshake ──> TOKENS or RAW_TOKENS ──> COMPLETE
       └────────────────── SaslHandshake ────────────────────────^                        │
    COMPLETE ── SaslHandshake, if the session has an end ──> TOKENS ... (re-authentication, KIP-368)

An ApiVersions request of a version that we do not know is answered and leads to VERSIONS_OR_HANDSHAKE, where
ApiVersions may come once more. After SaslHandshake v0 tokens come raw, without any header (RAW_TOKENS). Where
a mechanism asks for work in a thread, the state is WORKING until its result is given back. Everything that a
state has no entry for in `_TABLE` ends the connection.

A connection ends at once, without an answer, where the client does not speak this protocol. Where a login has
failed, both the answer and the end come after a delay, so that guessing is slow and clients do not storm us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from millrace.security.principals import Identity
from millrace.security.sasl.exchange import Challenge, Exchange, Failure, Step, Success, Work
from millrace.wire.error_codes import ErrorCode

REAUTHENTICATION_S_MIN: Final = 1.0
"""Between the beginnings of two re-authentications. Each costs us what a login costs."""
TOKEN_BYTES_MAX: Final = 524_288
FAILURE_DELAY_MS: Final = 100


class State(Enum):
    """Where a connection stands."""

    INITIAL = auto()
    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    RAW_TOKENS = auto()
    WORKING = auto()
    COMPLETE = auto()
    OTHER_MECHANISM = auto()
    """Re-authentication by another mechanism than before: it fails with the next token, as in Kafka."""
    FAILED = auto()


class Moment(NamedTuple):
    """Now, by the wall clock for credentials that end, and by the loop's for durations."""

    wall_ms: int
    loop_s: float


# What a client can do.


@dataclass(frozen=True, slots=True)
class VersionsAsked:
    """ApiVersions."""

    is_known_version: bool = True
    is_valid: bool = True
    """Whether name and version of the client's software are written as they have to be."""


@dataclass(frozen=True, slots=True)
class HandshakeAsked:
    """SaslHandshake."""

    version: int
    mechanism: str


@dataclass(frozen=True, slots=True)
class TokenSent:
    """SaslAuthenticate, or a raw token, which has no version."""

    version: int | None
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OtherAsked:
    """Any other request that can be read."""

    api: str
    """Its name, for the log and the answer."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A frame that is no request of Kafka's, or of a version that we do not know."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A frame over `token_bytes_max`."""


Event: TypeAlias = VersionsAsked | HandshakeAsked | TokenSent | OtherAsked | Unreadable | TooLarge


# What the connection has to do.


@dataclass(frozen=True, slots=True)
class VersionsAnswer:
    """The usual answer to ApiVersions, or the one with this error."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    error: ErrorCode = ErrorCode.NONE
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """Of SaslAuthenticate; after SaslHandshake v0 the bytes alone."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    data: bytes = field(default=b"", repr=False)
    session_lifetime_ms: int = 0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """A token without any header, as tokens came."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer of whatever was asked, with this error everywhere."""

    error: ErrorCode


SaslAnswer: TypeAlias = VersionsAnswer | HandshakeAnswer | TokenAnswer | RawAnswer | ErrorAnswer


@dataclass(frozen=True, slots=True)
class Close:
    """The connection ends; nothing more is read from it."""

    reason: str
    """For the log."""
    delay_ms: int = 0
    """So long the answer waits, and the end with it."""
    is_failed_login: bool = False
    """Whether it counts as a login that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What follows from an event. Nothing more is read from the connection before all of it is done."""

    answer: SaslAnswer | None = None
    work: Work | None = None
    """Its `run` is for a thread, and the result for `SaslSession.resume`."""
    identity: Identity | None = None
    """The login is complete: from now on the connection is this one's."""
    close: Close | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Of one listener."""

    mechanisms: Mapping[str, Callable[[], Exchange]]
    """Enabled ones, in the order in which clients are told."""
    reauthentication_ms_max: Mapping[str, int] = field(default_factory=dict)
    """By mechanism: how long a session lasts without being authenticated again; 0 or nothing: for ever."""
    token_bytes_max: int = TOKEN_BYTES_MAX
    """`sasl.server.max.receive.size`. The connection refuses longer frames before it has read them."""
    failure_delay_ms: int = FAILURE_DELAY_MS


class SaslSession:
    """Of one connection, from its first request to its end."""

    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings
        self.state = State.INITIAL
        self.identity: Identity | None = None
        """What the connection is authenticated as, also while it is authenticated again."""
        self.expires_loop_s: float | None = None
        """When its session ends, by the loop's clock."""
        self.speaks_reauthentication = False
        """Whether the client has shown that it reads the session's lifetime."""
        self.claimed = ""
        """Who the client of a login that failed said to be."""
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._work: Work | None = None
        self._is_raw = False
        self._refused_mechanism = ""
        self._reauthenticated_loop_s: float | None = None

    @property
    def mechanism(self) -> str:
        """The one that the client has chosen; empty before."""
        return self._mechanism

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a header."""
        return self.state is State.RAW_TOKENS

    def is_expired(self, loop_s: float) -> bool:
        """Whether no request may be served any more: the connection ends without an answer."""
        return self.expires_loop_s is not None and loop_s > self.expires_loop_s

    def receive(self, event: Event, now: Moment) -> Reaction:
        """Take what the client did. In WORKING nothing may come: the connection is not read."""
        assert self.state is not State.WORKING, event
        handle = _TABLE[self.state].get(type(event))
        return self._unexpected(event) if handle is None else handle(self, event, now)

    def resume(self, result: object, now: Moment) -> Reaction:
        """Take the result of the work that was asked for."""
        assert self.state is State.WORKING, self.state
        assert self._work is not None
        work, self._work = self._work, None
        return self._stepped(work.then(result), now)

    def abandon(self, reason: str) -> Reaction:
        """The work could not be done: the login fails as it does with a wrong password."""
        assert self.state is State.WORKING, self.state
        self._work = None
        return self._login_failed(Failure(reason))

    # The entries of the table.

    def _versions(self, event: VersionsAsked, now: Moment) -> Reaction:
        del now
        if not event.is_known_version:
            self.state = State.VERSIONS_OR_HANDSHAKE
            return Reaction(answer=VersionsAnswer(ErrorCode.UNSUPPORTED_VERSION))
        if not event.is_valid:
            self.state = State.VERSIONS_OR_HANDSHAKE
            return Reaction(answer=VersionsAnswer(ErrorCode.INVALID_REQUEST))
        self.state = State.HANDSHAKE
        return Reaction(answer=VersionsAnswer())

    def _handshake(self, event: HandshakeAsked, now: Moment) -> Reaction:
        del now
        enabled = tuple(self._settings.mechanisms)
        if event.mechanism not in self._settings.mechanisms:
            answer = HandshakeAnswer(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled)
            return self._failed(f"Unsupported SASL mechanism {event.mechanism!r:.100}", answer)
        if self.identity is not None and event.mechanism != self._mechanism:
            self._refused_mechanism = event.mechanism
            self.state = State.OTHER_MECHANISM
            return Reaction(answer=HandshakeAnswer(mechanisms=enabled))
        self._mechanism = event.mechanism
        self._exchange = self._settings.mechanisms[event.mechanism]()
        self._is_raw = event.version == 0
        self.state = State.RAW_TOKENS if self._is_raw else State.TOKENS
        return Reaction(answer=HandshakeAnswer(mechanisms=enabled))

    def _token(self, event: TokenSent, now: Moment) -> Reaction:
        assert (event.version is None) == self._is_raw, event
        assert self._exchange is not None
        if len(event.data) > self._settings.token_bytes_max:
            return self._too_large(TooLarge(), now)
        if event.version is not None and event.version > 0:
            self.speaks_reauthentication = True
        return self._stepped(self._exchange.respond(event.data, now.wall_ms), now)

    def _illegal(self, event: Event, now: Moment) -> Reaction:
        """A request that is no token while tokens are exchanged."""
        del now
        reason = f"Unexpected Kafka request of type {_name(event)} during SASL authentication."
        match event:
            case HandshakeAsked():
                answer: SaslAnswer = HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE)
            case VersionsAsked():
                answer = VersionsAnswer(ErrorCode.ILLEGAL_SASL_STATE)
            case _:
                answer = ErrorAnswer(ErrorCode.ILLEGAL_SASL_STATE)
        return self._failed(reason, answer)

    def _too_large(self, event: TooLarge, now: Moment) -> Reaction:
        del event, now
        return self._failed("Failing SASL authentication due to invalid receive size")

    def _other_mechanism(self, event: Event, now: Moment) -> Reaction:
        del event, now
        return self._failed(
            f"SASL mechanism '{self._refused_mechanism}' requested by client is not supported for "
            f"re-authentication of mechanism '{self._mechanism}'"
        )

    def _authenticate_again(self, event: HandshakeAsked, now: Moment) -> Reaction:
        last = self._reauthenticated_loop_s
        if self.expires_loop_s is None or (last is not None and now.loop_s - last < REAUTHENTICATION_S_MIN):
            # An ordinary request, and as such one that makes no sense here.
            if self.is_expired(now.loop_s):
                return self._closed("the session has expired")
            return Reaction(answer=HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE))
        self._reauthenticated_loop_s = now.loop_s
        return self._handshake(event, now)

    def _token_too_late(self, event: TokenSent, now: Moment) -> Reaction:
        del event
        if self.is_expired(now.loop_s):
            return self._closed("the session has expired")
        return Reaction(
            answer=TokenAnswer(
                ErrorCode.ILLEGAL_SASL_STATE,
                "SaslAuthenticate request received after successful authentication",
            )
        )

    # What comes of them.

    def _stepped(self, step: Step, now: Moment) -> Reaction:
        match step:
            case Work():
                self._work = step
                self.state = State.WORKING
                return Reaction(work=step)
            case Challenge(data):
                self.state = State.RAW_TOKENS if self._is_raw else State.TOKENS
                return Reaction(answer=RawAnswer(data) if self._is_raw else TokenAnswer(data=data))
            case Success():
                return self._succeeded(step, now)
            case Failure():
                return self._login_failed(step)

    def _succeeded(self, success: Success, now: Moment) -> Reaction:
        before = self.identity
        if before is not None and before.principal != success.identity.principal:
            kept, other = before.principal, success.identity.principal
            text = (
                f"Cannot change principals during re-authentication from {kept.kind}.{kept.name}: "
                f"{other.kind}.{other.name}"
            )
            return self._login_failed(Failure(text, text))
        self._exchange = None
        self.identity = success.identity
        lifetime_ms = self._lifetime_ms(success.identity, now)
        self.expires_loop_s = None if lifetime_ms is None else now.loop_s + lifetime_ms / 1000
        self.state = State.COMPLETE
        if self._is_raw:
            return Reaction(answer=RawAnswer(success.data), identity=success.identity)
        answer = TokenAnswer(data=success.data, session_lifetime_ms=lifetime_ms or 0)
        return Reaction(answer=answer, identity=success.identity)

    def _lifetime_ms(self, identity: Identity, now: Moment) -> int | None:
        """How long the session lasts; None: for ever."""
        setting_ms = self._settings.reauthentication_ms_max.get(self._mechanism, 0)
        bounds = [setting_ms] if setting_ms > 0 else []
        if identity.expires_ms is not None:
            bounds.append(identity.expires_ms - now.wall_ms)
        return max(0, min(bounds)) if bounds else None

    def _login_failed(self, failure: Failure) -> Reaction:
        if self._is_raw:
            # There is no place for an error between raw tokens. Kafka ends such connections without the delay
            # in most cases; we let nobody guess faster by speaking an older version.
            return self._failed(failure.reason)
        which = "authentication" if self.identity is None else "re-authentication"
        told = failure.told or (
            f"Authentication failed during {which} due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )
        return self._failed(failure.reason, TokenAnswer(ErrorCode.SASL_AUTHENTICATION_FAILED, told))

    def _failed(self, reason: str, answer: SaslAnswer | None = None) -> Reaction:
        self.state = State.FAILED
        if self._exchange is not None:
            self.claimed = self._exchange.claimed
        self._exchange = None
        close = Close(reason, delay_ms=self._settings.failure_delay_ms, is_failed_login=True)
        return Reaction(answer=answer, close=close)

    def _closed(self, reason: str) -> Reaction:
        self.state = State.FAILED
        self._exchange = None
        return Reaction(close=Close(reason))

    def _unexpected(self, event: Event) -> Reaction:
        if self.state is State.FAILED:
            return Reaction()
        if self.state is State.INITIAL:
            return self._closed(
                f"{_name(event)} as the first request: the client is configured with the wrong security "
                "protocol, or it is no client of Kafka's"
            )
        return self._closed(f"unexpected {_name(event)} in state {self.state.name} of the login")


def _name(event: Event) -> str:
    match event:
        case VersionsAsked():
            return "API_VERSIONS"
        case HandshakeAsked():
            return "SASL_HANDSHAKE"
        case TokenSent():
            return "SASL_AUTHENTICATE"
        case OtherAsked(api):
            return api
        case Unreadable(reason):
            return f"an unreadable frame ({reason})"
        case TooLarge():
            return "a frame that is too large"


Entry: TypeAlias = Callable[[SaslSession, Any, Moment], Reaction]

_TABLE: Final[Mapping[State, Mapping[type, Entry]]] = {
    State.INITIAL: {
        VersionsAsked: SaslSession._versions,
        HandshakeAsked: SaslSession._handshake,
        TooLarge: SaslSession._too_large,
    },
    State.VERSIONS_OR_HANDSHAKE: {
        VersionsAsked: SaslSession._versions,
        HandshakeAsked: SaslSession._handshake,
        TooLarge: SaslSession._too_large,
    },
    State.HANDSHAKE: {
        HandshakeAsked: SaslSession._handshake,
        TooLarge: SaslSession._too_large,
    },
    State.TOKENS: {
        TokenSent: SaslSession._token,
        HandshakeAsked: SaslSession._illegal,
        VersionsAsked: SaslSession._illegal,
        OtherAsked: SaslSession._illegal,
        TooLarge: SaslSession._too_large,
    },
    State.RAW_TOKENS: {
        TokenSent: SaslSession._token,
        TooLarge: SaslSession._too_large,
    },
    State.OTHER_MECHANISM: {
        VersionsAsked: SaslSession._other_mechanism,
        HandshakeAsked: SaslSession._other_mechanism,
        TokenSent: SaslSession._other_mechanism,
        OtherAsked: SaslSession._other_mechanism,
        Unreadable: SaslSession._other_mechanism,
        TooLarge: SaslSession._other_mechanism,
    },
    State.COMPLETE: {
        HandshakeAsked: SaslSession._authenticate_again,
        TokenSent: SaslSession._token_too_late,
    },
    State.FAILED: {},
}
