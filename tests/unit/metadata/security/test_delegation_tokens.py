"""Delegation tokens over a store in memory: an index that follows every broker's changes, and the sweep."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace.metadata.security.delegation_tokens import DelegationTokens, sweep_tokens
from millrace.metadata.service import Metadata
from millrace.security.credentials.scram import ScramMechanism
from millrace.security.errors import TokenNotFound
from millrace.security.principals import Identity, user
from millrace.security.tokens import TokenSettings
from millrace.sim.store import MemoryStore
from tests.unit.metadata.security.test_service import run, running
from tests.unit.metadata.worlds import CountedIds

ALICE = Identity(principal=user("alice"), mechanism="PLAIN")
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


def tokens_of(metadata: Metadata, clock: Clock) -> DelegationTokens:
    return DelegationTokens(metadata, TokenSettings(secret_key=b"key"), clock=clock, ids=CountedIds())


async def created(tokens: DelegationTokens) -> bytes:
    token = await tokens.create(ALICE, owner=None, renewers=(), lifetime_ms=-1, may_create=lambda _: False)
    return tokens.hmac_of(token)


async def until_known(metadata: Metadata, revision: int) -> None:
    while metadata.image.revision < revision:
        await asyncio.sleep(0)


def test_brokers_know_each_others_tokens() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as here, running(store) as there:
            clock = Clock()
            ours, theirs = tokens_of(here, clock), tokens_of(there, clock)
            secret = await created(ours)
            await until_known(there, here.image.revision)
            assert await theirs.renew(ALICE, secret, 5) == NOW_MS + 5
            await until_known(here, there.image.revision)
            (token,) = ours.describe(ALICE, None, lambda _: False)
            assert token.expires_ms == NOW_MS + 5
            # One that starts later finds what is there.
            later = tokens_of(there, clock)
            assert later.logins.find(ScramMechanism.SHA_256, token.token_id, NOW_MS) is not None
            await ours.expire(ALICE, secret, -1)
            await until_known(there, here.image.revision)
            with pytest.raises(TokenNotFound):
                await theirs.renew(ALICE, secret, 5)
            assert later.logins.find(ScramMechanism.SHA_256, token.token_id, NOW_MS) is None

    run(body())


def test_the_sweep_removes_what_has_expired_and_nothing_else() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            clock = Clock()
            tokens = tokens_of(metadata, clock)
            first = await created(tokens)
            for _ in range(120):
                await created(tokens)
            await tokens.renew(ALICE, first, 7)
            clock.now_ms += 8
            assert await tokens.sweep() == 1
            assert await tokens.sweep() == 0
            assert len(metadata.image.security.tokens) == 120
            clock.now_ms += DAY_MS
            assert await tokens.sweep() == 120
            assert len(metadata.image.security.tokens) == 0

    run(body())


def test_the_sweep_comes_again_and_again() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            clock = Clock()
            tokens = tokens_of(metadata, clock)
            sweeping = asyncio.get_running_loop().create_task(sweep_tokens(tokens, 1))
            for _ in range(2):
                await created(tokens)
                clock.now_ms += 2 * DAY_MS
                while len(metadata.image.security.tokens):
                    await asyncio.sleep(0.001)
            sweeping.cancel()

    run(body())


def test_without_a_key_tokens_are_kept_and_of_no_use() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            clock = Clock()
            await created(tokens_of(metadata, clock))
            keyless = DelegationTokens(metadata, TokenSettings(), clock=clock, ids=CountedIds())
            assert not keyless.is_enabled
            (token,) = metadata.image.security.tokens.values()
            assert keyless.logins.find(ScramMechanism.SHA_256, token.token_id, NOW_MS) is None
            await metadata.security.put_token(replace(token, expires_ms=1))
            await metadata.security.remove_tokens([token.token_id])

    run(body())
