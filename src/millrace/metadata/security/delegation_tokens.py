"""The delegation tokens of the cluster: who asks for one gets it by the rules, and the store keeps it.

Logins with a token find it in the index, which follows the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from millrace.core.clock import Clock, IdSource
from millrace.core.ids import format_topic_id
from millrace.metadata.image import Image
from millrace.metadata.service import Metadata
from millrace.security.principals import Identity, Principal
from millrace.security.tokens import (
    DelegationToken,
    MayCreate,
    MayDescribe,
    TokenIndex,
    TokenLogins,
    TokenRules,
    TokenSettings,
)

log = logging.getLogger(__name__)

REMOVED_PER_COMMIT_MAX: Final = 100
"""Of tokens that have expired: within what every store takes at once."""


class DelegationTokens:
    """All tokens of this moment, and the changes of them. Lasts as long as the broker."""

    def __init__(self, metadata: Metadata, settings: TokenSettings, *, clock: Clock, ids: IdSource) -> None:
        self._metadata = metadata
        self._clock = clock
        self._ids = ids
        self._rules = TokenRules(settings)
        self._index = TokenIndex(self._rules)
        self.logins = TokenLogins(self._rules, self._index)
        """For SCRAM with `tokenauth=true`."""
        for token in metadata.image.security.tokens.values():
            self._index.put(token)
        _ = metadata.subscribe(self._follow)

    @property
    def is_enabled(self) -> bool:
        return self._rules.is_enabled

    def hmac_of(self, token: DelegationToken) -> bytes:
        """The token's secret; raises TokensDisabled."""
        return self._rules.hmac_of(token.token_id)

    async def create(
        self,
        identity: Identity,
        *,
        owner: Principal | None,
        renewers: Sequence[Principal],
        lifetime_ms: int,
        may_create: MayCreate,
    ) -> DelegationToken:
        """A new token. Raises what `TokenRules.create` raises."""
        token = self._rules.create(
            identity,
            # Of the form that Kafka's have.
            token_id=format_topic_id(self._ids.topic_id()),
            now_ms=self._clock.wall_ms(),
            owner=owner,
            renewers=renewers,
            lifetime_ms=lifetime_ms,
            may_create=may_create,
        )
        await self._metadata.security.put_token(token, is_new=True)
        return token

    async def renew(self, identity: Identity, secret: bytes, period_ms: int) -> int:
        """When the token expires now. Raises what `TokenRules.renew` raises, and UnknownToken."""
        now_ms = self._clock.wall_ms()
        token = self._rules.renew(identity, self._index, secret, period_ms=period_ms, now_ms=now_ms)
        await self._metadata.security.put_token(token)
        return token.expires_ms

    async def expire(self, identity: Identity, secret: bytes, period_ms: int) -> int:
        """When the token expires now. Raises what `TokenRules.expire` raises, and UnknownToken."""
        now_ms = self._clock.wall_ms()
        expiry = self._rules.expire(identity, self._index, secret, period_ms=period_ms, now_ms=now_ms)
        if expiry.is_removed:
            await self._metadata.security.remove_tokens([expiry.token.token_id])
        else:
            await self._metadata.security.put_token(expiry.token)
        return expiry.expires_ms

    def describe(
        self, identity: Identity, owners: Sequence[Principal] | None, may_describe: MayDescribe
    ) -> list[DelegationToken]:
        """The tokens of these owners that somebody may see. Raises what `TokenRules.describe` raises."""
        return self._rules.describe(identity, self._index.all(), owners, may_describe)

    async def sweep(self) -> int:
        """Remove the tokens that have expired, and say how many. Every broker does; who comes second finds
        nothing."""
        expired = self._index.expired(self._clock.wall_ms())
        for at in range(0, len(expired), REMOVED_PER_COMMIT_MAX):
            await self._metadata.security.remove_tokens(expired[at : at + REMOVED_PER_COMMIT_MAX])
        return len(expired)

    def _follow(self, before: Image, after: Image) -> None:
        if before.security.tokens is after.security.tokens:
            return
        difference = before.security.tokens.difference(after.security.tokens)
        for token_id in difference.removed:
            self._index.remove(token_id)
        for token in (*difference.added.values(), *difference.changed.values()):
            self._index.put(token)


async def sweep_tokens(tokens: DelegationTokens, interval_ms: int) -> None:
    """Remove expired tokens again and again until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        if swept := await tokens.sweep():
            log.info("delegation tokens have expired", extra={"tokens": swept})
