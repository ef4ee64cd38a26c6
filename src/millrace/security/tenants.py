"""Tenants: a part of the names of a cluster with its own administrators, members and limits.

A tenant owns all topics, groups and transactional ids whose names begin with its prefix, which its clients
see and write as it is. It is enforced by the machinery that is there: a tenant stands for permissions and for
quotas, which nobody sets one by one. What it may hold altogether (partitions, bytes, connections) is checked
by whoever is about to add to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError
from millrace.core.limits import TOPIC_NAME_LENGTH_MAX
from millrace.security.acls.binding import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.principals import USER, InvalidPrincipal, parse_principal
from millrace.security.quotas.entities import QuotaEntity, entity
from millrace.security.quotas.keys import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

TENANT_NAME_LENGTH_MAX: Final = 100

OWNED_TYPES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_MEMBERS_MAY: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE_CONFIGS),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE,),
}


class InvalidTenant(MillraceError):
    """A tenant that cannot be: its name, its prefix, a principal or a limit."""


class TenantOverLimit(MillraceError):
    """What was asked for is more than the tenant may have. Asking again does not help."""


class TenantHeld(MillraceError):
    """The tenant has no room at the moment. Clients try again until something was deleted."""


class WhenFull(enum.StrEnum):
    """What becomes of records when a tenant stores as many bytes as it may."""

    HOLD = "hold"
    """Clients are told to try again later, and keep their records."""
    REJECT = "reject"
    """Clients are told that it is not allowed."""


class TenantLimits(NamedTuple):
    """What a tenant may take; None is no limit."""

    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    request_percentage: float | None = None
    partitions: int | None = None
    stored_bytes: int | None = None
    connections: int | None = None


UNLIMITED: Final = TenantLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A part of the cluster's names, with those who use it."""

    name: str
    prefix: str
    administrators: tuple[str, ...] = ()
    """Principals as text, who may do everything to what the tenant owns."""
    members: tuple[str, ...] = ()
    """Principals who may read and write."""
    limits: TenantLimits = UNLIMITED
    when_full: WhenFull = WhenFull.HOLD

    def owns(self, name: str) -> bool:
        """Whether a topic, group or transactional id of this name is the tenant's."""
        return name.startswith(self.prefix)

    def may_take(self, principal: str) -> bool:
        """Whether its own administrators may make somebody a member: only users whose names are the tenant's.
        Others would find their traffic held to limits of somebody who has no say over them."""
        return principal.startswith(f"{USER}:{self.prefix}")

    def has(self, principal: str) -> bool:
        return principal in self.administrators or principal in self.members

    def acls(self) -> Iterator[Acl]:
        """The permissions that the tenant stands for."""
        for kind in OWNED_TYPES:
            for principal in self.administrators:
                yield self._acl(kind, principal, Operation.ALL)
            for principal in self.members:
                for operation in _MEMBERS_MAY[kind]:
                    yield self._acl(kind, principal, operation)

    def quotas(self) -> tuple[QuotaEntity, dict[str, float]]:
        """The quotas that the tenant stands for."""
        limits = {
            PRODUCER_BYTE_RATE: self.limits.bytes_in_per_s,
            CONSUMER_BYTE_RATE: self.limits.bytes_out_per_s,
            REQUEST_PERCENTAGE: self.limits.request_percentage,
        }
        return entity(tenant=self.name), {
            key: float(bound) for key, bound in limits.items() if bound is not None
        }

    def check_partitions(self, *, present: int, added: int) -> None:
        """Whether the tenant may have more partitions; raises TenantOverLimit."""
        allowed = self.limits.partitions
        if allowed is not None and present + added > allowed:
            raise TenantOverLimit(
                f"tenant {self.name!r} has {present} partitions and may have {allowed}: "
                f"{added} more are too many"
            )

    def check_storage(self, stored_bytes: int) -> None:
        """Whether the tenant may store more; raises TenantHeld or TenantOverLimit."""
        allowed = self.limits.stored_bytes
        if allowed is None or stored_bytes < allowed:
            return
        text = f"tenant {self.name!r} stores {stored_bytes} bytes and may store {allowed}"
        raise TenantHeld(text) if self.when_full is WhenFull.HOLD else TenantOverLimit(text)

    def check_connections(self, present: int) -> None:
        """Whether one more connection may come; raises TenantOverLimit."""
        allowed = self.limits.connections
        if allowed is not None and present >= allowed:
            raise TenantOverLimit(f"tenant {self.name!r} has {present} connections, and may have no more")

    def _acl(self, kind: ResourceType, principal: str, operation: Operation) -> Acl:
        return Acl(kind, self.prefix, PatternType.PREFIXED, principal, WILDCARD, operation, Permission.ALLOW)


def check_tenant(tenant: Tenant) -> None:
    """Whether such a tenant may be, by itself; raises InvalidTenant."""
    if not 0 < len(tenant.name) <= TENANT_NAME_LENGTH_MAX:
        raise InvalidTenant(f"a tenant's name has 1 to {TENANT_NAME_LENGTH_MAX} characters")
    if not 0 < len(tenant.prefix) < TOPIC_NAME_LENGTH_MAX:
        raise InvalidTenant(
            f"tenant {tenant.name!r}: a prefix has 1 to {TOPIC_NAME_LENGTH_MAX - 1} characters"
        )
    if tenant.prefix.startswith("__") or "__".startswith(tenant.prefix):
        raise InvalidTenant(f"tenant {tenant.name!r}: names that begin with '__' are the cluster's own")
    if tenant.prefix.startswith(WILDCARD):
        # In permissions it stands for all names, which its administrators would then set.
        raise InvalidTenant(f"tenant {tenant.name!r}: a prefix cannot begin with {WILDCARD!r}")
    for principal in (*tenant.administrators, *tenant.members):
        try:
            name = parse_principal(principal).name
        except InvalidPrincipal as error:
            raise InvalidTenant(f"tenant {tenant.name!r}: {error}") from error
        if name in ("", WILDCARD):
            raise InvalidTenant(f"tenant {tenant.name!r}: {principal} names nobody")
    for limit, bound in tenant.limits._asdict().items():
        if bound is not None and not bound > 0:
            raise InvalidTenant(f"tenant {tenant.name!r}: the limit {limit} must be greater than 0")


@dataclass(frozen=True, slots=True)
class TenantTable:
    """All tenants at one moment, by name. It never changes; there are hundreds, not thousands."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    _of_principal: dict[str, Tenant] = field(init=False, compare=False, repr=False, default_factory=dict)
    _lengths: tuple[int, ...] = field(init=False, compare=False, repr=False, default=())
    _of_prefix: dict[str, Tenant] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in sorted(self.tenants):
            tenant = self.tenants[name]
            self._of_prefix[tenant.prefix] = tenant
            for principal in (*tenant.administrators, *tenant.members):
                self._of_principal.setdefault(principal, tenant)
        object.__setattr__(self, "_lengths", tuple(sorted({len(prefix) for prefix in self._of_prefix})))

    def __len__(self) -> int:
        return len(self.tenants)

    def owner_of(self, name: str) -> Tenant | None:
        """Whose name this is, if it is a tenant's. No prefix is the beginning of another."""
        for length in self._lengths:
            tenant = self._of_prefix.get(name[:length])
            if tenant is not None:
                return tenant
        return None

    def tenant_of(self, principals: Iterable[str]) -> Tenant | None:
        """To which tenant somebody belongs who counts as these principals; of several the first
        principal's."""
        for principal in principals:
            tenant = self._of_principal.get(principal)
            if tenant is not None:
                return tenant
        return None

    def administered_by(self, principals: Iterable[str]) -> list[Tenant]:
        """The tenants that somebody administers who counts as these principals."""
        found = ((name, self._of_principal.get(name)) for name in principals)
        return [tenant for name, tenant in found if tenant is not None and name in tenant.administrators]

    def may_administer(self, principals: Iterable[str], acl: Acl) -> bool:
        """Whether somebody may set this permission because it is about names of a tenant of theirs alone."""
        if acl.resource_type not in OWNED_TYPES:
            return False
        tenant = self.owner_of(acl.name)
        return tenant is not None and any(name in tenant.administrators for name in principals)

    def check(self, tenant: Tenant) -> None:
        """Whether the tenant may be beside the others; raises InvalidTenant."""
        check_tenant(tenant)
        for other in self.tenants.values():
            if other.name == tenant.name:
                continue
            if other.owns(tenant.prefix) or tenant.owns(other.prefix):
                raise InvalidTenant(
                    f"tenant {tenant.name!r}: the prefix {tenant.prefix!r} and {other.prefix!r} of tenant "
                    f"{other.name!r} would share names"
                )
            shared = [name for name in (*tenant.administrators, *tenant.members) if other.has(name)]
            if shared:
                raise InvalidTenant(
                    f"tenant {tenant.name!r}: {shared[0]} belongs to tenant {other.name!r} already"
                )

    def updated(self, changes: Mapping[str, Tenant | None]) -> TenantTable:
        """The table with these tenants as they are now; None for those that are gone."""
        merged = {**self.tenants, **changes}
        return TenantTable({name: tenant for name, tenant in merged.items() if tenant is not None})


NO_TENANTS: Final = TenantTable()
