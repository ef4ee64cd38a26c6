"""A permission comes out of a request as it went in."""

from __future__ import annotations

from millrace.client.acl_requests import creation_of, deletion_of
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType

ONE = Acl(
    ResourceType.TOPIC, "orders", PatternType.PREFIXED, "User:a", "10.0.0.1", Operation.READ, Permission.DENY
)
OTHER = ONE._replace(resource_type=ResourceType.GROUP, name="g", pattern=PatternType.LITERAL, host="*")


def test_permissions_are_set_one_by_one() -> None:
    found = [
        Acl(
            ResourceType(each.resource_type),
            each.resource_name,
            PatternType(each.resource_pattern_type),
            each.principal,
            each.host,
            Operation(each.operation),
            Permission(each.permission_type),
        )
        for each in creation_of([ONE, OTHER]).creations
    ]
    assert found == [ONE, OTHER]


def test_each_filter_means_one_permission() -> None:
    found = [
        (
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )
        for each in deletion_of([ONE, OTHER]).filters
    ]
    assert found == [tuple(ONE), tuple(OTHER)]
