"""What can be asked of the controller about security: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from millrace.security.acls.binding import Acl
from millrace.security.acls.roles import Role
from millrace.security.credentials.scram import ScramCredential
from millrace.security.quotas.entities import QuotaEntity
from millrace.security.quotas.keys import Alteration
from millrace.security.tenants import Tenant

if TYPE_CHECKING:
    from millrace.metadata.commands import Alteration as SettingAlteration
from millrace.security.tokens import DelegationToken


@dataclass(frozen=True, slots=True)
class CreateAcls:
    """Sets permissions, all at once. Those that are there stay as they are."""

    acls: Sequence[Acl]


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    """Removes permissions, all at once. Those that are not there are no error."""

    acls: Sequence[Acl]


@dataclass(frozen=True, slots=True)
class CreateRole:
    """Makes a role that is not there yet."""

    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMembers:
    """Gives a role to some and takes it from others. Who has it already keeps it."""

    role: str
    added: Sequence[str] = ()
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DeleteRole:
    """Takes a role from everybody. Permissions that name it stay, and count for nobody."""

    name: str


@dataclass(frozen=True, slots=True)
class AlterRole:
    """Makes, changes or removes a role by its settings."""

    name: str
    alterations: Sequence[SettingAlteration]


@dataclass(frozen=True, slots=True)
class AlterQuota:
    """Changes some limits of an entity, leaves the others as they are."""

    entity: QuotaEntity
    alterations: Sequence[Alteration]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterCredentials:
    """Sets and removes credentials of one user, by the names of their mechanisms."""

    user: str
    written: Mapping[str, ScramCredential] = field(default_factory=dict)
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PutToken:
    """Stores a new delegation token, or a changed one."""

    token: DelegationToken
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class RemoveToken:
    """Removes a token. One that is not there is no error: another broker was faster."""

    token_id: str


@dataclass(frozen=True, slots=True)
class PutTenant:
    """Stores a new tenant, or a changed one."""

    tenant: Tenant
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class AlterTenant:
    """Makes, changes or removes a tenant by its settings."""

    name: str
    alterations: Sequence[SettingAlteration]


@dataclass(frozen=True, slots=True)
class DeleteTenant:
    """Removes a tenant. What it owned stays, and belongs to nobody."""

    name: str


SecurityCommand: TypeAlias = (
    CreateAcls
    | DeleteAcls
    | CreateRole
    | ChangeMembers
    | DeleteRole
    | AlterRole
    | AlterQuota
    | AlterCredentials
    | PutToken
    | RemoveToken
    | PutTenant
    | AlterTenant
    | DeleteTenant
)
