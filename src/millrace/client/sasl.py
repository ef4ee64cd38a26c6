"""The client's half of a login by SASL: PLAIN, SCRAM and OAUTHBEARER. Knows no connection; shows no secret.

The keys of SCRAM are computed where the broker's half gets them from: `security/credentials/scram.py`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from millrace.client.errors import BrokerRefused, LoginFailed
from millrace.security.credentials.scram import ITERATIONS_MIN, ScramMechanism, salted_password
from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from millrace.client.security import SecurityOptions
    from millrace.client.tokens import TokenSource

SCRAM: Final = {mechanism.label: mechanism for mechanism in ScramMechanism}
MECHANISMS: Final = ("PLAIN", *SCRAM, "OAUTHBEARER")
_ITERATIONS_MAX: Final = 1_000_000
"""A broker that asks for more would keep this process busy for no reason."""


class SaslClient(Protocol):
    """`first` is sent, then `answer` to what the broker says. Either may take milliseconds, or wait for the
    network, unless `is_quick`."""

    mechanism: str
    is_quick: bool

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None:
        """What to send next, None when the broker has proved itself and nothing is left to say."""


def sasl_client(security: SecurityOptions, nonce: str | None = None) -> SaslClient:
    """For one login; `nonce` is given by tests alone."""
    if security.tokens is not None:
        return OAuthBearer(security.tokens, security.extensions)
    assert security.mechanism is not None
    assert security.username is not None
    assert security.password is not None
    if security.mechanism == "PLAIN":
        return Plain(security.username, security.password)
    return Scram(
        SCRAM[security.mechanism],
        security.username,
        security.password,
        is_token=security.is_delegation_token,
        nonce=nonce,
    )


class Plain:
    """The password itself: for connections that nobody overhears."""

    mechanism = "PLAIN"
    is_quick = True

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class OAuthBearer:
    """A token of a provider (RFC 7628)."""

    mechanism = "OAUTHBEARER"
    is_quick = False

    def __init__(self, tokens: TokenSource, extensions: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._extensions = extensions
        self._is_refused = False

    def first(self) -> bytes:
        pairs = {"auth": f"Bearer {self._tokens.take()}", **self._extensions}
        return ("n,," + "".join(f"\x01{name}={value}" for name, value in pairs.items()) + "\x01\x01").encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._is_refused:
            raise LoginFailed("the broker refused the token")
        if not challenge:
            return None
        # It has said why not, and waits for this before it fails.
        self._is_refused = True
        return b"\x01"


class Scram:
    """Proves the password without telling it, and has the broker prove that it knows its hash (RFC 5802)."""

    is_quick = False

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: str,
        *,
        is_token: bool = False,
        nonce: str | None = None,
    ) -> None:
        self.mechanism = mechanism.label
        self._hash = mechanism
        self._password = password
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}" + (",tokenauth=true" if is_token else "")
        self._expected_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            if self._expected_signature is None:
                return self._prove(challenge)
            signature = base64.b64decode(_fields(challenge).get("v", ""))
        except (ValueError, KeyError):
            raise LoginFailed("what the broker says in SCRAM is malformed") from None
        if not hmac.compare_digest(signature, self._expected_signature):
            raise LoginFailed("the broker could not prove that it knows the password's hash")
        return None

    def _prove(self, challenge: bytes) -> bytes:
        fields = _fields(challenge)
        nonce, iterations = fields.get("r", ""), int(fields.get("i", "0"))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise LoginFailed("the broker's nonce does not continue ours")
        # With few iterations somebody who poses as the broker could guess the password from the proof.
        if not ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise LoginFailed(f"the broker asks for {iterations} SCRAM iterations")
        digest = self._hash.digest
        salt = base64.b64decode(fields["s"], validate=True)
        salted = salted_password(self._hash, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        final = f"c=biws,r={nonce}"
        message = f"{self._bare},{challenge.decode()},{final}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()


def _fields(message: bytes) -> dict[str, str]:
    fields = dict(part.split("=", 1) for part in message.decode().split(",") if "=" in part)
    if "e" in fields:
        raise BrokerRefused(ErrorCode.SASL_AUTHENTICATION_FAILED, f"SCRAM: {fields['e']}")
    return fields
