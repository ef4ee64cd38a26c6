"""Permissions and all else of security in every store: many in transactions of its size, and the same image
for a broker that starts later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millrace.metadata.commands import Policy
from millrace.metadata.security.commands import AlterCredentials
from millrace.metadata.security.image import SecurityImage
from millrace.metadata.service import Metadata
from millrace.metadata.store import Store
from millrace.security.acls.filters import AclFilter
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.principals import user
from millrace.security.quotas.keys import Alteration
from millrace.security.tenants import Tenant
from millrace.security.tokens import DelegationToken
from tests.conformance.store.conftest import MakeStore
from tests.harness.background import background
from tests.unit.metadata.worlds import CountedIds
from tests.unit.security.acls.models import acl, deny

ODD = 'a "name"/with\0 all, sorts* of = 人'


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[Metadata]:
    async with background() as tasks:
        metadata = Metadata(store, policy=Policy, ids=CountedIds(), chance=random.Random(1))
        await metadata.start(tasks)
        try:
            yield metadata
        finally:
            await metadata.close()


async def change_everything(metadata: Metadata) -> SecurityImage:
    security = metadata.security
    everything = [acl(f"topic-{number}", principal=f"User:{number % 7}") for number in range(300)]
    assert await security.create_acls([*everything, deny(ODD), acl(f"{ODD}...")]) == [None] * 302
    await security.delete_acls([AclFilter(principal="User:3")])
    await security.create_role(Role(ODD, ("User:a",)))
    await security.change_members(ODD, added=["Group:b"])
    await security.alter_quotas(
        [([("user", ODD), ("client-id", None)], [Alteration("producer_byte_rate", 5)])]
    )
    keys = ScramCredential(b"\0salt", b"stored", b"server", 4_096)
    await security.alter_credentials([AlterCredentials(user=ODD, written={"SCRAM-SHA-512": keys})])
    token = DelegationToken(
        token_id="t", owner=user("a"), requester=user(ODD), issued_ms=1, expires_ms=2, ends_ms=3
    )
    await security.put_token(token, is_new=True)
    await security.put_tenant(Tenant(name="n", prefix="n.", members=("User:a",)), is_new=True)
    return metadata.image.security


def test_a_broker_that_starts_later_finds_everything(make_store: MakeStore) -> None:
    async def body() -> None:
        store = make_store()
        async with running(store) as metadata:
            before = await change_everything(metadata)
            assert len(before.acls) == 302 - 43
        if make_store.is_lost_at_close:
            return
        async with running(make_store()) as metadata:
            assert metadata.image.security == before
            assert metadata.image.security.tenant_acls == before.tenant_acls

    asyncio.run(body())
