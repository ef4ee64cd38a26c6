"""Which permissions a description or a deletion is about, as DescribeAcls and DeleteAcls ask for them."""

from __future__ import annotations

from typing import NamedTuple

from millrace.core.errors import MillraceError
from millrace.security.acls.binding import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType


class InvalidAclFilter(MillraceError):
    """A filter with a number that nobody knows: it could only match less than was meant."""


class AclFilter(NamedTuple):
    """None and ANY match everything. The pattern MATCH finds all that would count for a resource of the name:
    the literal one, the wildcard, and every prefix of it."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def check(self) -> None:
        """Raises InvalidAclFilter, with Kafka's words."""
        if ResourceType.UNKNOWN is self.resource_type or PatternType.UNKNOWN is self.pattern:
            raise InvalidAclFilter("Unknown patternFilter.")
        if Operation.UNKNOWN is self.operation or Permission.UNKNOWN is self.permission:
            raise InvalidAclFilter("Unknown entryFilter.")

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, WILDCARD)


EVERYTHING = AclFilter()
