"""Who may do what: Kafka's rules over the permissions of a moment. No I/O, and nothing is remembered.

In this order: a super user may do everything. Whatever denies the operation wins, be it for the literal name,
a prefix of it or every name, and for any of the principals that somebody counts as. Then whatever allows it,
also by an operation that implies it. What no permission at all covers is open or closed by a setting; what
some permission covers, for whomever, is closed to the rest.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.security.acls.binding import (
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from millrace.security.acls.index import EMPTY_ACLS, AclIndex, Grant, Grants, TypeIndex, subject_key
from millrace.security.acls.roles import EVERYBODY, NO_ROLES, RoleTable
from millrace.security.principals import Principal, parse_principal

NOT_ASKED: Final = -(2**31)
"""The field of authorised operations when the client did not ask for it."""

SUPPORTED_OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that answers tell of for each type of resource, where clients ask what they may do."""

_IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_DENYING: Final = tuple(1 << operation | 1 << Operation.ALL for operation in Operation)
"""The bits that deny each operation, indexed by its number."""
_ALLOWING: Final = tuple(
    _DENYING[operation] | sum(1 << implying for implying in _IMPLIED_BY.get(operation, ()))
    for operation in Operation
)
"""The bits that allow each operation, indexed by its number. What is implied is allowed and never denied: who
may not read may still see that there is something."""

_ANY_NAME: Final = "hardcode"
"""A name of Kafka's choice: who may use it because nothing is restricted may use any."""


class Subject(NamedTuple):
    """Somebody at a place, with everybody as whom they count. Made by the authorizer that is asked."""

    principal: str
    principals: tuple[str, ...]
    host: str
    keys: tuple[str, ...]
    """Under which their grants are found."""


class Reason(enum.StrEnum):
    """Which kind of rule decided, in Kafka's words."""

    SUPER_USER = "SuperUser"
    ACL = "MatchingAcl"
    NO_ACL = "DefaultAllow"
    CLOSED = "DefaultDeny"


class Ruling(NamedTuple):
    """A decision with the rule that made it."""

    is_allowed: bool
    reason: Reason
    acl: Acl | None = None
    """The permission that decided, if one did."""
    is_covered: bool = False
    """Whether any permission covers the resource, for whomever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorizer:
    """The rules of one moment. When permissions, roles or settings change, another one takes its place."""

    acls: AclIndex = field(default_factory=lambda: EMPTY_ACLS)
    tenant_acls: AclIndex = field(default_factory=lambda: EMPTY_ACLS)
    """The permissions that tenants stand for. They count as if somebody had set them."""
    roles: RoleTable = field(default_factory=lambda: NO_ROLES)
    super_users: frozenset[str] = frozenset()
    """`User:admin`. Groups and roles are possible, too; `User:*` is nobody, as in Kafka."""
    is_open_without_acl: bool = False
    """`allow.everyone.if.no.acl.found`."""
    revision: int = 0
    """The `access_revision` of the image that these rules were made from."""

    def subject(self, principal: Principal, host: str, groups: Iterable[str] = ()) -> Subject:
        """Somebody who asks, from an address."""
        principals = self.roles.principals(principal, groups)
        places = (WILDCARD, *host_texts(host))
        keys = tuple(subject_key(name, place) for name in principals for place in places)
        return Subject(str(principal), principals, host, keys)

    def is_super(self, subject: Subject) -> bool:
        return bool(self.super_users) and any(
            name in self.super_users for name in subject.principals if name != EVERYBODY
        )

    def allows(self, subject: Subject, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether this may be done."""
        if self.is_super(subject):
            return True
        allowed, denied, is_covered = self._bits(subject, resource_type, name)
        return self._is_allowed(operation, allowed, denied, is_covered)

    def authorized_operations(self, subject: Subject, resource_type: ResourceType, name: str) -> int:
        """All that may be done to a resource, as the bit field of answers: 1 << operation."""
        supported = SUPPORTED_OPERATIONS[resource_type]
        if self.is_super(subject):
            return sum(1 << operation for operation in supported)
        allowed, denied, is_covered = self._bits(subject, resource_type, name)
        return sum(
            1 << operation
            for operation in supported
            if self._is_allowed(operation, allowed, denied, is_covered)
        )

    def allows_somewhere(self, subject: Subject, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether this may be done to at least one resource of the type, existing or not: Kafka's
        authorizeByResourceType.

        A prefix is allowed in vain if it, or a beginning of it, is denied as a prefix; a literal name also if
        it is denied itself. Implied operations do not count here, as in Kafka."""
        if self.allows(subject, operation, resource_type, _ANY_NAME):
            return True
        bits = _DENYING[operation]
        own = [
            grants
            for index in self._indexes(resource_type)
            for key in subject.keys
            if (grants := index.subjects.get(key)) is not None
        ]
        # Whatever is said about all names decides alone.
        everything = [grants["=*"] for grants in own if "=*" in grants]
        if any(grant.denied & bits for grant in everything):
            return False
        if any(grant.allowed & bits for grant in everything):
            return True
        return any(
            grant.allowed & bits and not self._is_dominated(subject, resource_type, grant, bits)
            for grants in own
            for grant in grants.values()
        )

    def ruling(
        self, subject: Subject, operation: Operation, resource_type: ResourceType, name: str
    ) -> Ruling:
        """The same as `allows`, with the rule that decides: of several the most special one."""
        if self.is_super(subject):
            return Ruling(True, Reason.SUPER_USER)
        is_covered = False
        allowing: Acl | None = None
        for grants in self._covering(resource_type, name):
            is_covered = True
            for key in subject.keys:
                grant = grants.get(key)
                if grant is None:
                    continue
                if bits := grant.denied & _DENYING[operation]:
                    return Ruling(False, Reason.ACL, _acl(resource_type, grant, bits, Permission.DENY), True)
                if allowing is None and (bits := grant.allowed & _ALLOWING[operation]):
                    exact = bits & 1 << operation
                    allowing = _acl(resource_type, grant, exact or bits, Permission.ALLOW)
        if allowing is not None:
            return Ruling(True, Reason.ACL, allowing, True)
        if not is_covered and self.is_open_without_acl:
            return Ruling(True, Reason.NO_ACL)
        return Ruling(False, Reason.CLOSED, None, is_covered)

    def _is_allowed(self, operation: Operation, allowed: int, denied: int, is_covered: bool) -> bool:
        if denied & _DENYING[operation]:
            return False
        if allowed & _ALLOWING[operation]:
            return True
        return not is_covered and self.is_open_without_acl

    def _bits(self, subject: Subject, resource_type: ResourceType, name: str) -> tuple[int, int, bool]:
        """All that is allowed and denied to somebody on a resource, and whether anything covers it."""
        allowed = denied = 0
        is_covered = False
        keys = subject.keys
        for grants in self._covering(resource_type, name):
            is_covered = True
            for key in keys:
                grant = grants.get(key)
                if grant is not None:
                    allowed |= grant.allowed
                    denied |= grant.denied
        return allowed, denied, is_covered

    def _covering(self, resource_type: ResourceType, name: str) -> Iterator[Grants]:
        for index in self._indexes(resource_type):
            yield from index.covering(name)

    def _indexes(self, resource_type: ResourceType) -> Iterator[TypeIndex]:
        for acls in (self.acls, self.tenant_acls):
            index = acls.of_type(resource_type)
            if index is not None:
                yield index

    def _is_dominated(self, subject: Subject, resource_type: ResourceType, grant: Grant, bits: int) -> bool:
        """Whether no name is left of what a grant allows."""
        for grants in self._covering(resource_type, grant.name):
            for key in subject.keys:
                other = grants.get(key)
                if (
                    other is not None
                    and other.denied & bits
                    and (other.pattern is PatternType.PREFIXED or grant.pattern is PatternType.LITERAL)
                ):
                    return True
        return False


def parse_super_users(text: str) -> frozenset[str]:
    """`super.users`: principals with semicolons between them, since names of certificates have commas. Raises
    InvalidPrincipal."""
    return frozenset(str(parse_principal(part.strip())) for part in text.split(";") if part.strip())


def host_texts(address: str) -> tuple[str, ...]:
    """An address in every way in which a permission may write it. Java writes IPv6 without `::`, and an IPv4
    address that came over IPv6 as IPv4."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return (address,)
    if isinstance(parsed, ipaddress.IPv4Address):
        return (address,)
    if parsed.ipv4_mapped is not None:
        return (str(parsed.ipv4_mapped),)
    java = ":".join(f"{int(part, 16):x}" for part in parsed.exploded.split(":"))
    return tuple(dict.fromkeys((parsed.compressed, java)))


def _acl(resource_type: ResourceType, grant: Grant, bits: int, permission: Permission) -> Acl:
    """One of the permissions that a grant was made of: of the bits given the lowest, which is ALL if it is
    there."""
    operation = Operation((bits & -bits).bit_length() - 1)
    return Acl(resource_type, grant.name, grant.pattern, grant.principal, grant.host, operation, permission)
