"""Permissions over the wire: asked for, set and removed by Kafka's APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millrace.cli.broker_requests import Connection, raise_for
from millrace.client.acl_requests import creation_of, deletion_of
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType, known
from millrace.security.acls.filters import AclFilter
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.describe_acls import DescribeAclsRequest

VERSION: Final = 3
"""Of all three: the first that knows resources of the type USER."""


def read(broker: Connection, wanted: AclFilter) -> list[Acl]:
    """The permissions that a filter matches, in an order for people."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    answer = broker.ask(ApiKey.DESCRIBE_ACLS, VERSION, request)
    raise_for(answer.error_code, "permissions", answer.error_message)
    return sorted(
        _acl(resource.resource_type, resource.resource_name, resource.pattern_type, entry)
        for resource in answer.resources
        for entry in resource.acls
    )


def create(broker: Connection, acls: Sequence[Acl]) -> list[str | None]:
    """Set permissions; for each None, or why the broker refuses it."""
    request = creation_of(acls)
    answer = broker.ask(ApiKey.CREATE_ACLS, VERSION, request)
    return [refusal(result.error_code, result.error_message) for result in answer.results]


def delete(broker: Connection, acls: Sequence[Acl]) -> list[Acl]:
    """Remove exactly these permissions; those that were there."""
    request = deletion_of(acls)
    answer = broker.ask(ApiKey.DELETE_ACLS, VERSION, request)
    gone: list[Acl] = []
    for result in answer.filter_results:
        raise_for(result.error_code, "permissions", result.error_message)
        for found in result.matching_acls:
            raise_for(found.error_code, "permissions", found.error_message)
            gone.append(_acl(found.resource_type, found.resource_name, found.pattern_type, found))
    return gone


def refusal(code: int, message: str | None) -> str | None:
    """Why something was refused, in one line; None if it was not."""
    from millrace.wire.error_codes import ErrorCode

    if not code:
        return None
    error = ErrorCode(code)
    return f"{message or error.message} ({error.name})"


def _acl(resource_type: int, name: str, pattern: int, entry: Any) -> Acl:
    return Acl(
        known(ResourceType, resource_type),
        name,
        known(PatternType, pattern),
        entry.principal,
        entry.host,
        known(Operation, entry.operation),
        known(Permission, entry.permission_type),
    )
