"""Changes of security over a store in memory: per-item failures, transactions of the store's size, races."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.metadata.commands import Alteration as SettingAlteration
from millrace.metadata.commands import AlterOperation, Policy
from millrace.metadata.errors import (
    InvalidSecurityChange,
    RoleExists,
    UnknownCredential,
    UnknownTenant,
)
from millrace.metadata.security import service
from millrace.metadata.security.commands import AlterCredentials, AlterRole, AlterTenant
from millrace.metadata.service import Metadata
from millrace.security.acls.binding import InvalidAcl, Operation, PatternType
from millrace.security.acls.filters import EVERYTHING, AclFilter, InvalidAclFilter
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.principals import user
from millrace.security.quotas.entities import InvalidQuota, entity
from millrace.security.quotas.keys import Alteration
from millrace.security.tenants import Tenant
from millrace.security.tokens import DelegationToken
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.worlds import CountedIds
from tests.unit.security.acls.models import acl

RATE = "producer_byte_rate"


@asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[Metadata]:
    async with background() as tasks:
        metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
        await metadata.start(tasks)
        try:
            yield metadata
        finally:
            await metadata.close()


def run(body: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await body

    asyncio.run(bounded())


def test_permissions_are_created_described_and_deleted() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            security = metadata.security
            wrong = acl("x")._replace(pattern=PatternType.MATCH)
            outcomes = await security.create_acls([acl("a"), wrong, acl("ab..."), acl("a")])
            assert [type(outcome) for outcome in outcomes] == [type(None), InvalidAcl, type(None), type(None)]
            assert set(metadata.image.security.acls) == {acl("a"), acl("ab...")}
            matching = AclFilter(name="abc", pattern=PatternType.MATCH)
            assert await security.describe_acls(matching) == [acl("ab...")]

            unknown = AclFilter(operation=Operation.UNKNOWN)
            with pytest.raises(InvalidAclFilter):
                await security.describe_acls(unknown)
            found = await security.delete_acls([matching, unknown, EVERYTHING])
            assert found[0] == [acl("ab...")]
            assert isinstance(found[1], InvalidAclFilter)
            assert isinstance(found[2], list)
            assert set(found[2]) == {acl("a"), acl("ab...")}, "matched by two filters, deleted once"
            assert len(security.image.acls) == 0

    run(body())


def test_many_permissions_take_as_few_transactions_as_hold_them() -> None:
    async def body() -> None:
        store = MemoryStore(operations_max=128)
        async with running(store) as metadata:
            everything = [acl(f"t-{number}") for number in range(300)]
            before = store.commit_count
            assert await metadata.security.create_acls(everything[:128]) == [None] * 128
            assert store.commit_count - before == 1
            await metadata.security.create_acls(everything)
            assert store.commit_count - before == 3, "of three parts the first has nothing new"
            assert len(metadata.image.security.acls) == 300
            (deleted,) = await metadata.security.delete_acls([EVERYTHING])
            assert isinstance(deleted, list)
            assert len(deleted) == 300
            assert len(metadata.image.security.acls) == 0

    run(body())


def test_others_get_their_turns_while_a_filter_looks_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOOKED_AT_MAX", 10)

    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            await metadata.security.create_acls([acl(f"t-{number}") for number in range(95)])
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.get_running_loop().create_task(count())
            found = await metadata.security.describe_acls(AclFilter(principal="User:me"))
            counting.cancel()
            assert len(found) == 95
            assert turns >= 9

    run(body())


def test_roles_are_given_by_two_brokers_at_once() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as one, running(store) as other:
            await one.security.create_role(Role("r", ()))
            with pytest.raises(RoleExists):
                await one.security.create_role(Role("r", ()))
            await asyncio.gather(
                *(
                    metadata.security.change_members("r", added=[f"User:{number}"])
                    for number, metadata in enumerate([one, other] * 4)
                )
            )
            changed = await one.security.change_members("r", removed=["User:0"])
            assert sorted(changed.members) == [f"User:{number}" for number in range(1, 8)]
            await one.security.delete_role("r")
            assert len(one.image.security.roles) == 0

    run(body())


def test_quotas_fail_each_by_itself() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            set_rate = [Alteration(RATE, 5.0)]
            outcomes = await metadata.security.alter_quotas(
                [
                    ([("user", "a")], set_rate),
                    ([("team", "a")], set_rate),
                    ([("user", "b")], [Alteration(RATE, 0.5)]),
                    ([("user", "a")], set_rate),
                ]
            )
            assert outcomes[0] is None
            assert isinstance(outcomes[1], InvalidQuota)
            assert isinstance(outcomes[2], InvalidSecurityChange)
            assert "Ignoring duplicate entity" in str(outcomes[3])
            quotas = metadata.image.security.quotas
            assert dict(quotas) == {entity(user="a"): {RATE: 5.0}}
            await metadata.security.alter_quotas([([("user", None)], set_rate)], validate_only=True)
            assert metadata.image.security.quotas is quotas

    run(body())


def test_credentials_tokens_and_tenants_are_stored() -> None:
    async def body() -> None:
        async with running(MemoryStore()) as metadata:
            keys = ScramCredential(b"s", b"k", b"v", 4_096)
            outcomes = await metadata.security.alter_credentials(
                [
                    AlterCredentials(user="a", written={"SCRAM-SHA-256": keys}),
                    AlterCredentials(user="b", removed=["SCRAM-SHA-256"]),
                ]
            )
            assert outcomes[0] is None
            assert isinstance(outcomes[1], UnknownCredential)
            token = DelegationToken(
                token_id="t", owner=user("a"), requester=user("a"), issued_ms=1, expires_ms=2, ends_ms=3
            )
            await metadata.security.put_token(token, is_new=True)
            await metadata.security.put_tenant(Tenant(name="n", prefix="n."), is_new=True)
            security = metadata.image.security
            assert security.credentials["a"] == {"SCRAM-SHA-256": keys}
            assert security.tokens["t"] == token
            assert security.tenants.owner_of("n.x") is not None
            await metadata.security.remove_tokens(["t", "gone"])
            await metadata.security.delete_tenant("n")
            assert len(metadata.image.security.tokens) == 0
            with pytest.raises(UnknownTenant):
                await metadata.security.delete_tenant("n")

    run(body())


def test_tenants_made_at_once_by_two_brokers_share_no_names() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as one, running(store) as other:
            outcomes = await asyncio.gather(
                one.security.put_tenant(Tenant(name="a", prefix="x."), is_new=True),
                other.security.put_tenant(Tenant(name="b", prefix="x.y."), is_new=True),
                return_exceptions=True,
            )
            refused = [outcome for outcome in outcomes if outcome is not None]
            assert [type(outcome) for outcome in refused] == [InvalidSecurityChange]
            assert len(one.image.security.tenants) == 1

    run(body())


def test_settings_of_roles_and_tenants_are_changed_by_several_brokers_at_once() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with running(store) as one, running(store) as other:
            made = [SettingAlteration("prefix", AlterOperation.SET, "t.")]
            empty = [SettingAlteration("members", AlterOperation.SET, "")]
            outcomes = await one.security.alter_settings([AlterTenant("t", made), AlterRole("r", empty)])
            assert outcomes == [None, None]
            while "t" not in other.image.security.tenants.tenants:
                await asyncio.sleep(0)
            added = [
                [SettingAlteration("members", AlterOperation.APPEND, f"User:{number}")] for number in range(8)
            ]
            await asyncio.gather(
                *(
                    metadata.security.alter_settings([AlterTenant("t", more), AlterRole("r", more)])
                    for metadata, more in zip([one, other] * 4, added, strict=True)
                )
            )
            while one.image.revision != other.image.revision:
                await asyncio.sleep(0)
            everybody = [f"User:{number}" for number in range(8)]
            security = one.image.security
            assert sorted(security.tenants.tenants["t"].members) == everybody
            assert sorted(security.roles.roles["r"].members) == everybody
            gone = [SettingAlteration("prefix", AlterOperation.DELETE, None)]
            assert await other.security.alter_settings([AlterTenant("t", gone)], validate_only=True) == [None]
            assert len(other.image.security.tenants) == 1
            assert await other.security.alter_settings([AlterTenant("t", gone)]) == [None]
            (again,) = await other.security.alter_settings([AlterTenant("t", gone)])
            assert isinstance(again, UnknownTenant)

    run(body())
