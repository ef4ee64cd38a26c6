"""An administrator's changes of permissions, tried again until they are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.client.acl_requests import creation_of, deletion_of
from millrace.security.acls.binding import Acl
from millrace.sim.clients.admin import first_answer
from millrace.sim.clients.client import Client
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.create_acls import CreateAclsResponse
from millrace.wire.messages.delete_acls import DeleteAclsResponse

ACLS_VERSION: Final = 3


async def create_acls(client: Client, acls: Sequence[Acl]) -> None:
    request = creation_of(acls)
    while True:
        answer: CreateAclsResponse = await first_answer(client, ApiKey.CREATE_ACLS, ACLS_VERSION, request)
        if not any(result.error_code for result in answer.results):
            return
        await client.pause()


async def delete_acl(client: Client, acl: Acl) -> None:
    request = deletion_of([acl])
    while True:
        answer: DeleteAclsResponse = await first_answer(client, ApiKey.DELETE_ACLS, ACLS_VERSION, request)
        (result,) = answer.filter_results
        # An attempt whose answer was lost may have found it: then nothing matches any more.
        if not result.error_code and not any(each.error_code for each in result.matching_acls):
            return
        await client.pause()
