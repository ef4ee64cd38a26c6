"""Kafka's rules as a walk over all permissions, slow and obvious, and permissions for generated tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from millrace.security.acls.binding import (
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = [operation for operation in Operation if operation >= Operation.ALL]
NAMES = ["a", "ab", "abc", "b", "ba", "hardcode"]
PRINCIPALS = ["User:me", "User:*", "User:you", "Group:us", "Role:reader"]
HOSTS = ["*", "10.0.0.1", "10.0.0.2"]

acls = st.builds(
    Acl,
    resource_type=st.sampled_from(TYPES),
    name=st.sampled_from([*NAMES, WILDCARD]),
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)


def acl(
    text: str,
    operation: Operation = Operation.READ,
    principal: str = "User:me",
    *,
    host: str = WILDCARD,
    permission: Permission = Permission.ALLOW,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> Acl:
    """A permission for a literal name, or for a prefix: `orders`, `ord...`."""
    name = text.removesuffix("...")
    pattern = PatternType.LITERAL if name == text else PatternType.PREFIXED
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def deny(
    text: str,
    operation: Operation = Operation.READ,
    principal: str = "User:me",
    *,
    host: str = WILDCARD,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return acl(
        text,
        operation,
        principal,
        host=host,
        permission=Permission.DENY,
        resource_type=resource_type,
    )


def covers(found: Acl, resource_type: ResourceType, name: str) -> bool:
    if found.resource_type is not resource_type:
        return False
    if found.pattern is PatternType.PREFIXED:
        return name.startswith(found.name)
    return found.name in (name, WILDCARD)


def concerns(found: Acl, principals: Sequence[str], host: str) -> bool:
    return found.principal in principals and found.host in (WILDCARD, host)


def operation_matches(found: Acl, operation: Operation) -> bool:
    if found.operation in (Operation.ALL, operation):
        return True
    if found.permission is Permission.DENY:
        return False
    if operation is Operation.DESCRIBE:
        return found.operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    return operation is Operation.DESCRIBE_CONFIGS and found.operation is Operation.ALTER_CONFIGS


def allows(
    everything: Iterable[Acl],
    principals: Sequence[str],
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    *,
    is_open: bool,
) -> bool:
    covering = [found for found in everything if covers(found, resource_type, name)]
    if not covering:
        return is_open
    deciding = {
        found.permission
        for found in covering
        if concerns(found, principals, host) and operation_matches(found, operation)
    }
    return Permission.DENY not in deciding and Permission.ALLOW in deciding


def allows_somewhere(
    everything: Sequence[Acl],
    principals: Sequence[str],
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    *,
    is_open: bool,
) -> bool:
    if allows(everything, principals, host, operation, resource_type, "hardcode", is_open=is_open):
        return True
    own = [
        found
        for found in everything
        if found.resource_type is resource_type
        and concerns(found, principals, host)
        and found.operation in (Operation.ALL, operation)
    ]
    denied = {(found.pattern, found.name) for found in own if found.permission is Permission.DENY}
    if (PatternType.LITERAL, WILDCARD) in denied:
        return False
    for found in own:
        if found.permission is Permission.DENY:
            continue
        if (found.pattern, found.name) == (PatternType.LITERAL, WILDCARD):
            return True
        if found.pattern is PatternType.LITERAL and (PatternType.LITERAL, found.name) in denied:
            continue
        beginnings = [found.name[:length] for length in range(1, len(found.name) + 1)]
        if not any((PatternType.PREFIXED, beginning) in denied for beginning in beginnings):
            return True
    return False
