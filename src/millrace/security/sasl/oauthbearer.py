"""SASL OAUTHBEARER (RFC 7628): `n,[a=user],^Aauth=Bearer TOKEN^A[key=value^A...]^A`.

A token that is refused is answered with JSON. The client sends ^A as a sign that it has read that, and then
the login fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from millrace.security.principals import Identity, user
from millrace.security.sasl.exchange import Answer, Challenge, Failure, Step, Success, Work

OAUTHBEARER: Final = "OAUTHBEARER"
REFUSED: Final = '{"status":"invalid_token"}'

_SEPARATOR: Final = "\x01"
_HEADER: Final = re.compile(r"n,(?:a=((?:[^=,\x00-\x01]|=2C|=3D)+))?,")
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]+")
_AUTHORIZATION: Final = re.compile(r"(\w+) +([-_.a-zA-Z0-9]+)", re.ASCII)
_AUTH: Final = "auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidToken:
    """What a token says of its holder, after it was found to be genuine."""

    subject: str
    expires_ms: int
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedToken:
    """Why a token does not count; for the log, without any part of its signature."""

    reason: str


Verdict = ValidToken | RefusedToken


class TokenValidator(Protocol):
    """Says what a token is worth."""

    def begin(self, token: str, now_ms: int) -> RefusedToken | Callable[[], Verdict]:
        """Refuse it at once, or return the work that finds out: for a thread."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """What a client sends first."""

    token: str = field(repr=False)
    authorization_id: str = ""
    extensions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


class _Malformed(Exception):
    """A message that is not OAUTHBEARER's; says why."""


class OAuthBearerExchange:
    """One token, then the answer; after a refusal one more, which ends it."""

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self.claimed = ""
        self._refusal: str | None = None
        self._is_over = False

    def respond(self, token: bytes, now_ms: int) -> Step:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            # Whatever comes now: a second token on the same exchange is a guess.
            return Failure(refusal, REFUSED)
        if self._is_over:
            return Failure("a token came after the end of the exchange")
        self._is_over = True
        try:
            message = parse_client_message(token)
        except _Malformed as error:
            return Failure(str(error))

        self.claimed = message.authorization_id

        def concluded(verdict: Verdict) -> Answer:
            return self._concluded(message, verdict)

        begun = self._validator.begin(message.token, now_ms)
        return concluded(begun) if isinstance(begun, RefusedToken) else Work(begun, concluded)

    def _concluded(self, message: ClientMessage, verdict: Verdict) -> Answer:
        if isinstance(verdict, RefusedToken):
            self._refusal = verdict.reason
            return Challenge(REFUSED.encode())
        if message.authorization_id not in ("", verdict.subject):
            return Failure(
                "authorization id of another user",
                f"Authentication failed: Client requested an authorization id ({message.authorization_id}) "
                f"that is different from the token's principal name ({verdict.subject})",
            )
        return Success(
            Identity(
                principal=user(verdict.subject),
                mechanism=OAUTHBEARER,
                groups=verdict.groups,
                expires_ms=verdict.expires_ms,
            )
        )


def parse_client_message(token: bytes) -> ClientMessage:
    """Raises a private error, which `respond` makes a failure."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise _Malformed("Invalid OAUTHBEARER client first message: not UTF-8") from None
    header = _HEADER.match(text)
    if header is None:
        raise _Malformed("Invalid OAUTHBEARER client first message: its header")
    pairs = text[header.end() :].split(_SEPARATOR)
    if len(pairs) < 3 or pairs[0] or pairs[-1] or pairs[-2]:
        raise _Malformed("Invalid OAUTHBEARER client first message: its separators")
    properties: dict[str, str] = {}
    for pair in pairs[1:-2]:
        key, _, value = pair.partition("=")
        if _KEY.fullmatch(key) is None or _VALUE.fullmatch(value) is None:
            raise _Malformed("Invalid OAUTHBEARER client first message: an extension")
        if key in properties:
            raise _Malformed("Invalid OAUTHBEARER client first message: a key comes twice")
        properties[key] = value
    auth = properties.pop(_AUTH, None)
    if auth is None:
        raise _Malformed("Invalid OAUTHBEARER client first message: 'auth' not specified")
    authorization = _AUTHORIZATION.fullmatch(auth)
    if authorization is None:
        raise _Malformed("Invalid OAUTHBEARER client first message: invalid 'auth' format")
    if authorization[1].lower() != "bearer":
        raise _Malformed("Invalid scheme in OAUTHBEARER client first message")
    name = (header[1] or "").replace("=2C", ",").replace("=3D", "=")
    return ClientMessage(authorization[2], name, MappingProxyType(properties))
