"""Permissions as the requests of Kafka's APIs write them, for all who set or remove some."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.security.acls.binding import Acl
from millrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest


def creation_of(acls: Sequence[Acl]) -> CreateAclsRequest:
    """The request that sets these permissions."""
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )


def deletion_of(acls: Sequence[Acl]) -> DeleteAclsRequest:
    """The request that removes exactly these permissions: a filter for each."""
    return DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=acl.resource_type,
                resource_name_filter=acl.name,
                pattern_type_filter=acl.pattern,
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]
    )
