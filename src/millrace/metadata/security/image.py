"""What the metadata holds of security, as one immutable part of the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.core.persistent_map import PersistentMap
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.index import EMPTY_ACLS, AclIndex
from millrace.security.acls.roles import NO_ROLES, RoleTable
from millrace.security.credentials.scram import ScramCredential
from millrace.security.quotas.precedence import NO_QUOTAS, QuotaTable
from millrace.security.tenants import NO_TENANTS, TenantTable
from millrace.security.tokens import DelegationToken


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityImage:
    """Permissions, roles, quotas, credentials, tokens and tenants at one revision of the store."""

    acls: AclIndex
    """The permissions that somebody has set."""
    tenant_acls: AclIndex
    """The permissions that tenants stand for."""
    roles: RoleTable
    quotas: QuotaTable
    """The limits that somebody has set, and those that tenants stand for."""
    tenants: TenantTable
    credentials: PersistentMap[str, Mapping[str, ScramCredential]]
    """Keys for SCRAM, by user and then by the name of the mechanism."""
    tokens: PersistentMap[str, DelegationToken]
    """Delegation tokens, by id."""
    revisions: PersistentMap[str, int]
    """The mod revision of every record but those of permissions, by key."""
    access_revision: int = field(compare=False)
    """The last revision that changed what somebody may do: permissions, roles, tenants."""
    quota_revision: int = field(compare=False)
    credential_revision: int = field(compare=False)
    """The last revision that changed by what somebody can show who they are: credentials and tokens."""

    def authorizer(self, *, super_users: frozenset[str], is_open_without_acl: bool) -> Authorizer:
        """The rules of this moment. Whoever decides by it makes another when `access_revision` is another, or
        a setting."""
        return Authorizer(
            acls=self.acls,
            tenant_acls=self.tenant_acls,
            roles=self.roles,
            super_users=super_users,
            is_open_without_acl=is_open_without_acl,
            revision=self.access_revision,
        )


EMPTY_SECURITY: Final = SecurityImage(
    acls=EMPTY_ACLS,
    tenant_acls=EMPTY_ACLS,
    roles=NO_ROLES,
    quotas=NO_QUOTAS,
    tenants=NO_TENANTS,
    credentials=PersistentMap(),
    tokens=PersistentMap(),
    revisions=PersistentMap(),
    access_revision=0,
    quota_revision=0,
    credential_revision=0,
)
