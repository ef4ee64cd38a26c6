"""The face of the metadata to those who change permissions, roles, quotas, credentials, tokens and tenants.

A call returns when the local image has the change. What is wrong with one of several is that one's own
failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from millrace.core.errors import MillraceError
from millrace.metadata.committing import CommittedImage
from millrace.metadata.errors import MetadataError
from millrace.metadata.image import Image
from millrace.metadata.security.commands import (
    AlterCredentials,
    AlterQuota,
    AlterRole,
    AlterTenant,
    ChangeMembers,
    CreateAcls,
    CreateRole,
    DeleteAcls,
    DeleteRole,
    DeleteTenant,
    PutTenant,
    PutToken,
    RemoveToken,
    SecurityCommand,
)
from millrace.metadata.security.image import SecurityImage
from millrace.security.acls.binding import Acl, InvalidAcl, check
from millrace.security.acls.filters import AclFilter, InvalidAclFilter
from millrace.security.acls.roles import Role
from millrace.security.quotas.entities import InvalidQuota, checked_entity
from millrace.security.quotas.keys import Alteration
from millrace.security.tenants import Tenant
from millrace.security.tokens import DelegationToken

ACLS_PER_COMMIT_MAX: Final = 1_000
"""Folded in one go: more would hold up everything else on the loop."""
LOOKED_AT_MAX: Final = 2_000
"""Permissions in one go, of those that a filter without a name has to look at."""

T = TypeVar("T")
EntityParts = Sequence[tuple[str, str | None]]


class SecurityMetadata:
    """Part of `Metadata`, which makes it. It has no state of its own."""

    def __init__(self, committed: CommittedImage, *, operations_max: int) -> None:
        self._committed = committed
        self._acls_max = min(operations_max, ACLS_PER_COMMIT_MAX)

    @property
    def image(self) -> SecurityImage:
        return self._committed.image.security

    # Permissions.

    async def create_acls(self, acls: Sequence[Acl]) -> list[MillraceError | None]:
        """CreateAcls: for each None, or why it cannot be. As many as the store takes at once are one
        transaction."""
        outcomes: list[MillraceError | None] = []
        sound: list[Acl] = []
        for acl in acls:
            try:
                check(acl)
            except InvalidAcl as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
                sound.append(acl)
        for part in self._parts(sound):
            await self._submit([CreateAcls(part)])
        return outcomes

    async def describe_acls(self, wanted: AclFilter) -> list[Acl]:
        """DescribeAcls: the permissions that a filter matches, all of one moment. Raises InvalidAclFilter."""
        wanted.check()
        present = self.image.acls
        if wanted.name is not None:
            return list(present.matching(wanted))
        found: list[Acl] = []
        everything = iter(present)
        while portion := list(islice(everything, LOOKED_AT_MAX)):
            found += [acl for acl in portion if wanted.matches(acl)]
            if len(portion) == LOOKED_AT_MAX:
                await asyncio.sleep(0)
        return found

    async def delete_acls(
        self, filters: Sequence[AclFilter], may_delete: Callable[[Acl], bool] = lambda _: True
    ) -> list[list[Acl] | InvalidAclFilter]:
        """DeleteAcls: for each filter the permissions that it matched and that are gone now, or what is wrong
        with it. Those that may not be deleted stay as if they had not matched."""
        outcomes: list[list[Acl] | InvalidAclFilter] = []
        doomed: dict[Acl, None] = {}
        for wanted in filters:
            try:
                matched = [acl for acl in await self.describe_acls(wanted) if may_delete(acl)]
            except InvalidAclFilter as error:
                outcomes.append(error)
                continue
            outcomes.append(matched)
            doomed.update(dict.fromkeys(matched))
        for part in self._parts(list(doomed)):
            await self._submit([DeleteAcls(part)])
        return outcomes

    # Roles.

    async def create_role(self, role: Role) -> None:
        """Raises RoleExists, InvalidSecurityChange."""
        await self._submit([CreateRole(role)])

    async def change_members(
        self, role: str, *, added: Sequence[str] = (), removed: Sequence[str] = ()
    ) -> Role:
        """The role as it is then. Raises UnknownRole, InvalidSecurityChange."""
        await self._submit([ChangeMembers(role=role, added=added, removed=removed)])
        return self.image.roles.roles[role]

    async def delete_role(self, name: str) -> None:
        """Raises UnknownRole."""
        await self._submit([DeleteRole(name)])

    # Quotas.

    async def alter_quotas(
        self, requests: Sequence[tuple[EntityParts, Sequence[Alteration]]], *, validate_only: bool = False
    ) -> list[MillraceError | None]:
        """AlterClientQuotas: for each entity None, or why none of its alterations counts."""
        outcomes: list[MillraceError | None] = [None] * len(requests)
        commands: dict[int, AlterQuota] = {}
        seen: dict[object, None] = {}
        for place, (parts, alterations) in enumerate(requests):
            try:
                entity = checked_entity(parts)
            except InvalidQuota as error:
                outcomes[place] = error
                continue
            if entity in seen:
                outcomes[place] = InvalidQuota(f"Ignoring duplicate entity {entity}")
                continue
            seen[entity] = None
            commands[place] = AlterQuota(entity, alterations)
        decided = await self._outcomes(list(commands.values()), validate_only=validate_only)
        for place, outcome in zip(commands, decided, strict=True):
            outcomes[place] = outcome
        return outcomes

    # Credentials and tokens.

    async def alter_credentials(self, requests: Sequence[AlterCredentials]) -> list[MetadataError | None]:
        """For each user None, or why not: UnknownCredential."""
        return await self._outcomes(requests)

    async def put_token(self, token: DelegationToken, *, is_new: bool = False) -> None:
        """Raises TokenExists for a new one, UnknownToken for a changed one."""
        await self._submit([PutToken(token, is_new)])

    async def remove_tokens(self, token_ids: Sequence[str]) -> None:
        """Remove delegation tokens. Those that are gone already are no error."""
        await self._submit([RemoveToken(token_id) for token_id in token_ids])

    # Tenants.

    async def put_tenant(self, tenant: Tenant, *, is_new: bool = False) -> None:
        """Raises TenantExists for a new one, UnknownTenant for a changed one, InvalidSecurityChange."""
        await self._submit([PutTenant(tenant, is_new)])

    async def delete_tenant(self, name: str) -> None:
        """Raises UnknownTenant."""
        await self._submit([DeleteTenant(name)])

    # Roles and tenants by their settings.

    async def alter_settings(
        self, requests: Sequence[AlterRole | AlterTenant], *, validate_only: bool = False
    ) -> list[MetadataError | None]:
        """IncrementalAlterConfigs of roles and tenants: for each None, or why it stays as it is."""
        return await self._outcomes(requests, validate_only=validate_only)

    # The way of all of them.

    def _parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        for at in range(0, len(items), self._acls_max):
            yield items[at : at + self._acls_max]

    async def _submit(self, commands: Sequence[SecurityCommand]) -> None:
        for outcome in await self._outcomes(commands):
            if outcome is not None:
                raise outcome

    async def _outcomes(
        self, commands: Sequence[SecurityCommand], *, validate_only: bool = False
    ) -> list[MetadataError | None]:
        return await self._committed.submit(commands, _nothing, validate_only=validate_only, is_local=False)


def _nothing(_place: int, _before: Image, _after: Image) -> None:
    """Only whether a command was accepted is of interest."""
