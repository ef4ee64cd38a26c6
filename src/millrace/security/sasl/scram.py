"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding.

client  n,,n=user,r=CLIENT_NONCE[,tokenauth=true]
server  r=CLIENT_NONCE+SERVER_NONCE,s=SALT,i=ITERATIONS
client  c=biws,r=BOTH_NONCES,p=PROOF
server  v=SIGNATURE

With `tokenauth=true` the user name is the id of a delegation token, and the password its HMAC in Base64. A
user that is not there gets a challenge all the same, and fails where a wrong password fails.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from millrace.security.credentials.scram import (
    ITERATIONS_MIN,
    Chance,
    Decoys,
    ScramCredential,
    ScramMechanism,
    random_text,
)
from millrace.security.principals import Identity, Principal, user
from millrace.security.sasl.exchange import Answer, Challenge, Failure, Step, Success, Work
from millrace.security.sasl.plain import OTHER_AUTHORIZATION_ID

_TOKEN_AUTH: Final = "tokenauth"
_BARE_ATTRIBUTES_MIN: Final = 2
_FINAL_ATTRIBUTES_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A delegation token that somebody logs in with."""

    owner: Principal
    expires_ms: int
    credential: ScramCredential | Callable[[], ScramCredential] = field(repr=False)
    """Or the work that derives it, if nobody has used this token yet."""


class ScramStore(Protocol):
    """Who can log in by SCRAM."""

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None: ...

    def token(self, mechanism: ScramMechanism, token_id: str, now_ms: int) -> TokenLogin | None:
        """A delegation token that has not expired."""

    def keep(self, mechanism: ScramMechanism, token_id: str, credential: ScramCredential) -> None:
        """Take the credential that was derived for a token, for the next login with it."""


@dataclass(frozen=True, slots=True)
class _ClientFirst:
    gs2_header: str
    authorization_id: str
    bare: str
    name: str
    nonce: str
    is_token: bool


class _Malformed(Exception):
    """A message that is not SCRAM's; says why."""


class ScramExchange:
    """Two tokens, then the answer. It holds credentials for as long as it lasts, and shows none."""

    def __init__(self, mechanism: ScramMechanism, store: ScramStore, decoys: Decoys, chance: Chance) -> None:
        self._mechanism = mechanism
        self._store = store
        self._decoys = decoys
        self._chance = chance
        self.claimed = ""
        self._taken = 0
        self._final: _Final | None = None

    def respond(self, token: bytes, now_ms: int) -> Step:
        # No token is taken in a place that is past: a repeated proof must not find the same nonces.
        self._taken += 1
        try:
            if self._taken == 1:
                return self._first(token, now_ms)
            if self._taken == 2 and self._final is not None:
                return self._final.conclude(token)
        except _Malformed as error:
            return Failure(str(error))
        return Failure("a token came after the end of the exchange")

    def _first(self, token: bytes, now_ms: int) -> Step:
        message = _parse_first(token)
        self.claimed = message.name
        # Before anything is looked up, so that this answer tells nothing about users.
        if message.authorization_id not in ("", message.name):
            return Failure("authorization id of another user", OTHER_AUTHORIZATION_ID)
        if not message.is_token:
            identity = Identity(principal=user(message.name), mechanism=self._mechanism.label)
            credential = self._store.credential(self._mechanism, message.name)
            return self._challenge(message, identity, credential)
        login = self._store.token(self._mechanism, message.name, now_ms)
        if login is None:
            return self._challenge(message, None, None)
        identity = Identity(
            principal=login.owner,
            mechanism=self._mechanism.label,
            is_token=True,
            expires_ms=login.expires_ms,
        )
        if isinstance(login.credential, ScramCredential):
            return self._challenge(message, identity, login.credential)

        def derived(credential: ScramCredential) -> Answer:
            self._store.keep(self._mechanism, message.name, credential)
            return self._challenge(message, identity, credential)

        return Work(login.credential, derived)

    def _challenge(
        self, message: _ClientFirst, identity: Identity | None, credential: ScramCredential | None
    ) -> Answer:
        if credential is None or credential.iterations < ITERATIONS_MIN:
            identity, credential = None, self._decoys.credential(self._mechanism, message.name)
        nonce = message.nonce + random_text(self._chance)
        salt = base64.b64encode(credential.salt).decode()
        challenge = f"r={nonce},s={salt},i={credential.iterations}"
        self._final = _Final(self._mechanism, message, nonce, challenge, credential, identity)
        return Challenge(challenge.encode())


@dataclass(frozen=True, slots=True)
class _Final:
    """Takes the second token."""

    mechanism: ScramMechanism
    first: _ClientFirst
    nonce: str
    challenge: str
    credential: ScramCredential = field(repr=False)
    identity: Identity | None
    """Whom a right proof makes the client; None for a user that is not there."""

    def conclude(self, token: bytes) -> Answer:
        without_proof, nonce, channel, proof = _parse_final(token)
        if not hmac.compare_digest(nonce.encode(), self.nonce.encode()):
            return Failure("Invalid client nonce in the final client message.")
        if channel != base64.b64encode(self.first.gs2_header.encode()).decode():
            return Failure("the channel binding is not that of the first message")
        digest = self.mechanism.digest
        signed = f"{self.first.bare},{self.challenge},{without_proof}".encode()
        signature = hmac.digest(self.credential.stored_key, signed, digest)
        is_sized = len(proof) == len(signature)
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=False))
        found = hashlib.new(digest, client_key).digest()
        is_proved = hmac.compare_digest(found, self.credential.stored_key)
        # One way out, after the same work, for everybody who has not proved it.
        if not (is_sized and is_proved) or self.identity is None:
            return Failure("Invalid client credentials")
        server_signature = hmac.digest(self.credential.server_key, signed, digest)
        return Success(self.identity, b"v=" + base64.b64encode(server_signature))


def _parse_first(token: bytes) -> _ClientFirst:
    text = _text(token)
    flag, separator, rest = text.partition(",")
    authorization, another, bare = rest.partition(",")
    if flag != "n" or not separator or not another or (authorization and not authorization.startswith("a=")):
        raise _Malformed(
            "Invalid SCRAM client first message format: only `n,,` and `n,a=user,` are supported"
        )
    attributes = bare.split(",")
    if len(attributes) < _BARE_ATTRIBUTES_MIN:
        raise _Malformed("Invalid SCRAM client first message format: too few attributes")
    nonce = _named(attributes[1], "r")
    if not nonce or not all("!" <= character <= "~" for character in nonce):
        raise _Malformed("Invalid SCRAM client first message format: the nonce")
    extensions = dict(_extension(text) for text in attributes[2:])
    return _ClientFirst(
        gs2_header=f"{flag},{authorization},",
        authorization_id=_unescaped(authorization.removeprefix("a=")) if authorization else "",
        bare=bare,
        name=_unescaped(_named(attributes[0], "n")),
        nonce=nonce,
        is_token=extensions.get(_TOKEN_AUTH, "").lower() == "true",
    )


def _parse_final(token: bytes) -> tuple[str, str, str, bytes]:
    """All before the proof, the nonce, the channel binding, the proof."""
    text = _text(token)
    without_proof, _, last = text.rpartition(",")
    attributes = without_proof.split(",")
    if len(attributes) + 1 < _FINAL_ATTRIBUTES_MIN:
        raise _Malformed("Invalid SCRAM client final message format: too few attributes")
    for extension in attributes[2:]:
        _extension(extension)
    try:
        proof = base64.b64decode(_named(last, "p"), validate=True)
    except (binascii.Error, ValueError):
        raise _Malformed("Invalid SCRAM client final message format: the proof") from None
    return without_proof, _named(attributes[1], "r"), _named(attributes[0], "c"), proof


def _text(token: bytes) -> str:
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise _Malformed("Invalid SCRAM message format: not UTF-8") from None
    if "\0" in text:
        raise _Malformed("Invalid SCRAM message format: a NUL")
    return text


def _named(attribute: str, name: str) -> str:
    if not attribute.startswith(f"{name}="):
        raise _Malformed(f"Invalid SCRAM message format: there is no {name}= in its place")
    return attribute[2:]


def _extension(attribute: str) -> tuple[str, str]:
    name, equals, value = attribute.partition("=")
    # `m=` asks for an extension that must be understood, and we know none of that kind.
    if not equals or not value or not (name.isascii() and name.isalpha()) or name == "m":
        raise _Malformed("Invalid SCRAM message format: an extension")
    return name, value


def _unescaped(name: str) -> str:
    """`=2C` stands for a comma and `=3D` for an equals sign, which may stand for nothing else."""
    pieces = name.split("=")
    if not name or any(piece[:2] not in ("2C", "3D") for piece in pieces[1:]):
        raise _Malformed("Invalid SCRAM message format: the user name")
    escaped = (("," if piece[:2] == "2C" else "=") + piece[2:] for piece in pieces[1:])
    return pieces[0] + "".join(escaped)
