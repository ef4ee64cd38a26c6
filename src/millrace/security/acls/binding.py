"""One permission, as Kafka writes it: who may or may not do what to which resource, and from where.

The numbers are the protocol's. A number that nobody knows is UNKNOWN, as in Kafka: it is refused where a
permission is made, and matches nothing where one is looked for.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeVar

from millrace.core.errors import MillraceError

WILDCARD: Final = "*"
"""Any name, where it is the name of a literal resource; any host, where it is a host."""
CLUSTER_NAME: Final = "kafka-cluster"
"""What the only resource of the type CLUSTER is called."""


class ResourceType(enum.IntEnum):
    """What a permission is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    @property
    def title(self) -> str:
        """The type as Kafka's audit lines write it: `TransactionalId`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class PatternType(enum.IntEnum):
    """How the name of a permission's resource is meant. ANY and MATCH are for filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """What is done to a resource. ANY is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """Whether it is allowed or denied. ANY is for filters alone."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One permission. A tuple, because there may be a hundred thousand of them."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    """`User:alice`: compared as text, since the type ends at the first colon."""
    host: str
    """An address as text, or `*`."""
    operation: Operation
    permission: Permission


class InvalidAcl(MillraceError):
    """A permission that cannot be made. The words are Kafka's, which tools show to people."""


Code = TypeVar("Code", ResourceType, PatternType, Operation, Permission)


def known(kind: type[Code], code: int) -> Code:
    """The member with this number, or UNKNOWN."""
    try:
        return kind(code)
    except ValueError:
        return kind.UNKNOWN


def check(acl: Acl) -> None:
    """Whether the permission may be made, as CreateAcls has it; raises InvalidAcl.

    Of a principal Kafka checks the colon alone, so that types of others (`Role:`, `Group:`) are accepted."""
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise InvalidAcl(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.name:
        raise InvalidAcl("Invalid empty resource name")
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise InvalidAcl(f"Invalid resourceType {acl.resource_type.name}")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidAcl(f"Invalid patternType {acl.pattern.name}")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise InvalidAcl(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise InvalidAcl(f"Invalid permissionType {acl.permission.name}")
    if ":" not in acl.principal:
        raise InvalidAcl(
            f"Could not parse principal from `{acl.principal}` "
            f"(no colon is present separating the principal type from the principal name)"
        )
