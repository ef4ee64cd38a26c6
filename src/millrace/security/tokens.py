"""Delegation tokens (KIP-48): who gets one, who may renew, end and see it, and how one logs in with it.

A token is its id and the HMAC-SHA-512 of that id under the brokers' secret key. The HMAC is the token's
secret: it is computed whenever it is needed and stored nowhere, so another key makes all tokens worthless.
One logs in with it by SCRAM; the credentials for that are derived when a token is first used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.security.credentials.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    derive_credential,
)
from millrace.security.errors import (
    InvalidPrincipalType,
    TokenAuthorizationFailed,
    TokenExpired,
    TokenNotFound,
    TokenOwnerMismatch,
    TokenRequestNotAllowed,
    TokensDisabled,
)
from millrace.security.principals import ANONYMOUS, USER, Identity, Principal
from millrace.security.sasl.scram import TokenLogin

LIFETIME_MS_MAX: Final = 7 * 24 * 3_600_000
RENEWAL_MS: Final = 24 * 3_600_000
CREDENTIALS_KEPT_MAX: Final = 10_000
"""Of tokens that somebody has logged in with."""
SWEEP_MS: Final = 3_600_000
"""How often expired tokens are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """`delegation.token.*`."""

    secret_key: bytes | None = field(default=None, repr=False)
    """None: there are no tokens."""
    lifetime_ms_max: int = LIFETIME_MS_MAX
    renewal_ms: int = RENEWAL_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """What is stored of a token: everything but its secret."""

    token_id: str
    owner: Principal
    requester: Principal
    """Who asked for it: somebody may be allowed to do so for others."""
    renewers: tuple[Principal, ...] = ()
    issued_ms: int
    expires_ms: int
    """Unless it is renewed."""
    ends_ms: int
    """For good."""

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms < now_ms or self.ends_ms < now_ms

    def is_of(self, principal: Principal) -> bool:
        """Whether this principal owns it or may renew it."""
        return principal == self.owner or principal in self.renewers


MayCreate = Callable[[Principal], bool]
"""Whether the requester has CreateTokens on this user."""
MayDescribe = Callable[[DelegationToken], bool]
"""Whether the requester has Describe on this token, or DescribeTokens on its owner."""


def check_may_ask(identity: Identity) -> None:
    """Raises TokenRequestNotAllowed for those who have not proved who they are, or have by a token."""
    is_unproved = identity.mechanism is None and identity.principal == ANONYMOUS
    if identity.is_token or is_unproved:
        raise TokenRequestNotAllowed


class TokenRules:
    """Decides about tokens, and changes none: what it returns is for the store."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings

    @property
    def is_enabled(self) -> bool:
        return self._settings.secret_key is not None

    def hmac_of(self, token_id: str) -> bytes:
        """A token's secret; raises TokensDisabled."""
        if self._settings.secret_key is None:
            raise TokensDisabled
        return hmac.digest(self._settings.secret_key, token_id.encode(), "sha512")

    def create(
        self,
        identity: Identity,
        *,
        token_id: str,
        now_ms: int,
        owner: Principal | None = None,
        renewers: Sequence[Principal] = (),
        lifetime_ms: int = -1,
        may_create: MayCreate,
    ) -> DelegationToken:
        """A new token of the requester's or, if that is allowed, of another owner. `token_id` is fresh."""
        check_may_ask(identity)
        requester = identity.principal
        owner = requester if owner is None else owner
        if owner != requester and not may_create(owner):
            raise TokenAuthorizationFailed(str(owner))
        for renewer in renewers:
            if renewer.kind != USER:
                raise InvalidPrincipalType(renewer.kind)
        if not self.is_enabled:
            raise TokensDisabled
        most_ms = self._settings.lifetime_ms_max
        ends_ms = now_ms + (min(most_ms, lifetime_ms) if lifetime_ms > 0 else most_ms)
        return DelegationToken(
            token_id=token_id,
            owner=owner,
            requester=requester,
            renewers=tuple(renewers),
            issued_ms=now_ms,
            expires_ms=min(ends_ms, now_ms + self._settings.renewal_ms),
            ends_ms=ends_ms,
        )

    def renew(
        self, identity: Identity, known: TokenIndex, secret: bytes, *, period_ms: int, now_ms: int
    ) -> DelegationToken:
        """The token with a later end, or an earlier one: it ends so long after now."""
        token = self._found(identity, known, secret)
        if token.is_expired(now_ms):
            raise TokenExpired
        self._check_is_of(token, identity)
        most_ms = self._settings.renewal_ms
        period_ms = min(most_ms, period_ms) if period_ms > 0 else most_ms
        return replace(token, expires_ms=min(token.ends_ms, now_ms + period_ms))

    def expire(
        self, identity: Identity, known: TokenIndex, secret: bytes, *, period_ms: int, now_ms: int
    ) -> Expiry:
        """The token with its new end, or its removal if the period is negative."""
        token = self._found(identity, known, secret)
        self._check_is_of(token, identity)
        if period_ms < 0:
            # Also one that has expired and was not swept up yet.
            return Expiry(token, now_ms, is_removed=True)
        if token.is_expired(now_ms):
            raise TokenExpired
        expires_ms = min(token.ends_ms, now_ms + period_ms)
        return Expiry(replace(token, expires_ms=expires_ms), expires_ms)

    def describe(
        self,
        identity: Identity,
        known: Iterable[DelegationToken],
        owners: Sequence[Principal] | None,
        may_describe: MayDescribe,
    ) -> list[DelegationToken]:
        """Those of these owners that the requester may see; None stands for all owners, no owner for none."""
        check_may_ask(identity)
        if not self.is_enabled:
            raise TokensDisabled
        return [
            token
            for token in known
            if owners is None or any(token.is_of(owner) for owner in owners)
            if token.is_of(identity.principal) or may_describe(token)
        ]

    def _found(self, identity: Identity, known: TokenIndex, secret: bytes) -> DelegationToken:
        check_may_ask(identity)
        if not self.is_enabled:
            raise TokensDisabled
        token = known.with_secret(secret)
        if token is None:
            raise TokenNotFound
        return token

    def _check_is_of(self, token: DelegationToken, identity: Identity) -> None:
        if not token.is_of(identity.principal):
            raise TokenOwnerMismatch


@dataclass(frozen=True, slots=True)
class Expiry:
    """What comes of a request to end a token."""

    token: DelegationToken
    expires_ms: int
    is_removed: bool = False


class TokenIndex:
    """All tokens, by id and by secret. Secrets are looked up by their hashes: how long that takes tells
    nothing about the secrets that there are."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._by_id: dict[str, DelegationToken] = {}
        self._ids_by_hash: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, token_id: str) -> DelegationToken | None:
        return self._by_id.get(token_id)

    def all(self) -> Iterable[DelegationToken]:
        return self._by_id.values()

    def with_secret(self, secret: bytes) -> DelegationToken | None:
        token_id = self._ids_by_hash.get(hashlib.sha256(secret).digest())
        return None if token_id is None else self._by_id[token_id]

    def put(self, token: DelegationToken) -> None:
        """Enter a token, or what has become of one. Without a secret key it is known, and of no use."""
        if token.token_id not in self._by_id and self._rules.is_enabled:
            self._ids_by_hash[self._hash(token.token_id)] = token.token_id
        self._by_id[token.token_id] = token

    def remove(self, token_id: str) -> None:
        if self._by_id.pop(token_id, None) is not None and self._rules.is_enabled:
            del self._ids_by_hash[self._hash(token_id)]

    def expired(self, now_ms: int) -> list[str]:
        """The ids of tokens that are to be removed."""
        return [token.token_id for token in self._by_id.values() if token.is_expired(now_ms)]

    def _hash(self, token_id: str) -> bytes:
        return hashlib.sha256(self._rules.hmac_of(token_id)).digest()


@dataclass(frozen=True, slots=True)
class TokenCredentialWork:
    """Derives the SCRAM credential of a token: for a thread. Shows no secret."""

    mechanism: ScramMechanism
    secret: bytes = field(repr=False)

    def __call__(self) -> ScramCredential:
        # The salt comes from the secret, so that all brokers give the same one and none has to be stored. The
        # password is 64 random bytes already: the iterations are there because clients insist on them.
        salt = hmac.digest(self.secret, b"scram salt " + self.mechanism.label.encode(), "sha256")[:16]
        password = base64.b64encode(self.secret).decode()
        return derive_credential(self.mechanism, password, salt=salt, iterations=ITERATIONS_MIN)


class TokenLogins:
    """Lets holders of tokens log in, and keeps what was derived for those who did."""

    def __init__(self, rules: TokenRules, known: TokenIndex) -> None:
        self._rules = rules
        self._known = known
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    def find(self, mechanism: ScramMechanism, token_id: str, now_ms: int) -> TokenLogin | None:
        """A token that counts at this moment."""
        token = self._known.get(token_id)
        if token is None or token.is_expired(now_ms) or not self._rules.is_enabled:
            return None
        credential = self._credentials.get((token_id, mechanism))
        if credential is not None:
            return TokenLogin(token.owner, token.expires_ms, credential)
        work = TokenCredentialWork(mechanism, self._rules.hmac_of(token_id))
        return TokenLogin(token.owner, token.expires_ms, work)

    def keep(self, mechanism: ScramMechanism, token_id: str, credential: ScramCredential) -> None:
        """The oldest makes room: it is derived again if it is wanted."""
        if len(self._credentials) >= CREDENTIALS_KEPT_MAX:
            del self._credentials[next(iter(self._credentials))]
        self._credentials[token_id, mechanism] = credential
