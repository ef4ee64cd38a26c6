"""An administrator's changes of permissions, tried again until they are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.security.acls.binding import Acl
from millrace.sim.clients.admin import first_answer
from millrace.sim.clients.client import Client
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from millrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse

ACLS_VERSION: Final = 3


async def create_acls(client: Client, acls: Sequence[Acl]) -> None:
    request = CreateAclsRequest(
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
    while True:
        answer: CreateAclsResponse = await first_answer(client, ApiKey.CREATE_ACLS, ACLS_VERSION, request)
        if not any(result.error_code for result in answer.results):
            return
        await client.pause()


async def delete_acl(client: Client, acl: Acl) -> None:
    request = DeleteAclsRequest(
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
        ]
    )
    while True:
        answer: DeleteAclsResponse = await first_answer(client, ApiKey.DELETE_ACLS, ACLS_VERSION, request)
        (result,) = answer.filter_results
        # An attempt whose answer was lost may have found it: then nothing matches any more.
        if not result.error_code and not any(each.error_code for each in result.matching_acls):
            return
        await client.pause()
