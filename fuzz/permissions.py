"""Throws damaged permissions, filters and settings of roles and tenants at those who read them:
`python -m fuzz.permissions --seconds 60 [--seed N] [--only TEXT]`.

What must hold: whatever is sent is taken or refused, in little time. What is taken can be stored, and is
found again by its own filter; a filter finds the same by the index as by looking at everything; and nobody
who administers a tenant gets beyond its names.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import Final

from fuzz.command_line import fuzz
from fuzz.decoders import Fault
from fuzz.logins import Target, run_targets
from millrace.broker.handlers.security.acls import acl_of, filter_of
from millrace.metadata.commands import Alteration, AlterOperation
from millrace.metadata.security import records
from millrace.metadata.security.config_alterations import (
    altered_role,
    altered_tenant,
    described_role,
    described_tenant,
)
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType, check
from millrace.security.acls.filters import AclFilter
from millrace.security.acls.index import AclIndex
from millrace.security.acls.roles import Role, check_role
from millrace.security.config_resources import LISTS, MEMBERS, PREFIX, TENANT_SETTINGS
from millrace.security.tenants import Tenant, TenantTable, check_tenant
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millrace.wire.messages.describe_acls import DescribeAclsRequest

VERSION: Final = 3
NAMES: Final = ("orders", "ord", "o", "*", "team.orders", "team.", "", "kafka-cluster", "ä" * 80)
PRINCIPALS: Final = ("User:alice", "User:*", "Role:ops", "Group:g", "User:CN=a,O=b", "alice", ":", "")
HOSTS: Final = ("*", "127.0.0.1", "::1", "", "host")
SETTINGS_SEPARATOR: Final = b"\0"
TEAM: Final = Tenant(name="team", prefix="team.", administrators=("User:boss",))
TENANTS: Final = TenantTable({"team": TEAM})


def all_targets() -> Iterator[Target]:
    yield Target("CreateAcls", _create, _take_create)
    yield Target("DescribeAcls", _describe, _take_describe)
    yield Target("DeleteAcls", _delete, _take_delete)
    yield Target("settings of a role", partial(_settings, (MEMBERS,)), _take_role)
    yield Target("settings of a tenant", partial(_settings, TENANT_SETTINGS), _take_tenant)


@cache
def _index() -> AclIndex:
    """Every combination of a few permissions."""
    return AclIndex().updated(
        Acl(kind, name, pattern, principal, host, operation, permission)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
        for name in NAMES[:6]
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
        for principal in PRINCIPALS[:3]
        for host in HOSTS[:2]
        for operation in (Operation.READ, Operation.ALL)
        for permission in (Permission.ALLOW, Permission.DENY)
    )


def _take_create(data: bytes) -> None:
    request = schema.request_decoder(ApiKey.CREATE_ACLS, VERSION)(data)
    for creation in request.creations:
        acl = acl_of(creation)
        if TENANTS.may_administer(["User:boss"], acl):
            assert acl.name.startswith(TEAM.prefix), acl
        check(acl)
        assert records.acl_of_key(records.acl_key(acl)) == acl, acl
        alone = AclIndex().updated([acl])
        assert list(alone.matching(AclFilter(*acl))) == [acl], acl
        by_name = AclFilter(acl.resource_type, acl.name, PatternType.MATCH)
        assert list(alone.matching(by_name)) == [acl], acl


def _take_describe(data: bytes) -> None:
    _find(filter_of(schema.request_decoder(ApiKey.DESCRIBE_ACLS, VERSION)(data)))


def _take_delete(data: bytes) -> None:
    for wanted in schema.request_decoder(ApiKey.DELETE_ACLS, VERSION)(data).filters:
        _find(filter_of(wanted))


def _find(wanted: AclFilter) -> None:
    wanted.check()
    found = list(_index().matching(wanted))
    assert len(found) == len(set(found)), wanted
    assert set(found) == {acl for acl in _index() if wanted.matches(acl)}, wanted


def _alterations(data: bytes) -> list[Alteration]:
    """Of the form name, number of the operation, value, each led by a zero byte."""
    words = data.decode("utf-8", "replace").split(SETTINGS_SEPARATOR.decode())[1:]
    return [
        Alteration(name, AlterOperation(len(operation) % 4), value or None)
        for name, operation, value in zip(*[iter(words)] * 3, strict=False)
    ]


def _take_role(data: bytes) -> None:
    role = altered_role("ops", Role("ops", ("User:alice",)), _alterations(data))
    if role is None:
        return
    # Once more, behind what is there by now.
    role = altered_role("ops", role, [Alteration(MEMBERS, AlterOperation.APPEND, "User:last")])
    assert role is not None
    check_role(role)
    again = [Alteration(name, AlterOperation.SET, value) for name, value in described_role(role).items()]
    assert altered_role("ops", None, again) == role, role


def _take_tenant(data: bytes) -> None:
    tenant = altered_tenant("team", TEAM, _alterations(data))
    if tenant is None:
        return
    check_tenant(tenant)
    shown = described_tenant(tenant).items()
    again = [Alteration(name, AlterOperation.SET, value) for name, value in shown if value is not None]
    assert altered_tenant("team", None, again) == tenant, tenant


# Requests of the right form.


def _number(chance: random.Random, most: int) -> int:
    return chance.randint(-128, 127) if chance.random() < 0.1 else chance.randint(1, most)


def _create(chance: random.Random) -> bytes:
    creations = [
        AclCreation(
            resource_type=_number(chance, 7),
            resource_name=chance.choice(NAMES),
            resource_pattern_type=_number(chance, 4),
            principal=chance.choice(PRINCIPALS),
            host=chance.choice(HOSTS),
            operation=_number(chance, 15),
            permission_type=_number(chance, 3),
        )
        for _ in range(chance.randint(0, 4))
    ]
    encode = schema.request_encoder(ApiKey.CREATE_ACLS, VERSION)
    return bytes(encode(CreateAclsRequest(creations=creations)))


def _describe(chance: random.Random) -> bytes:
    wanted = _filter(chance)
    encode = schema.request_encoder(ApiKey.DESCRIBE_ACLS, VERSION)
    return bytes(
        encode(
            DescribeAclsRequest(
                resource_type_filter=wanted.resource_type_filter,
                resource_name_filter=wanted.resource_name_filter,
                pattern_type_filter=wanted.pattern_type_filter,
                principal_filter=wanted.principal_filter,
                host_filter=wanted.host_filter,
                operation=wanted.operation,
                permission_type=wanted.permission_type,
            )
        )
    )


def _delete(chance: random.Random) -> bytes:
    encode = schema.request_encoder(ApiKey.DELETE_ACLS, VERSION)
    return bytes(encode(DeleteAclsRequest(filters=[_filter(chance) for _ in range(chance.randint(0, 4))])))


def _filter(chance: random.Random) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=_number(chance, 7),
        resource_name_filter=chance.choice((None, *NAMES)),
        pattern_type_filter=_number(chance, 4),
        principal_filter=chance.choice((None, *PRINCIPALS)),
        host_filter=chance.choice((None, *HOSTS)),
        operation=_number(chance, 15),
        permission_type=_number(chance, 3),
    )


def _settings(names: tuple[str, ...], chance: random.Random) -> bytes:
    words: list[bytes] = [b""]
    for name in chance.sample(names, chance.randint(0, len(names))):
        value = str(chance.choice((1, 12.5, 10**9, -1)))
        if name in LISTS:
            value = ";".join(chance.choice(PRINCIPALS) for _ in range(chance.randint(0, 4)))
        elif name == PREFIX:
            value = chance.choice(("team.", "t", "__x", "x" * 300))
        words += [name.encode(), b"x" * chance.randint(0, 3), value.encode()]
    return SETTINGS_SEPARATOR.join(words)


def run(seconds: float, seed: int, only: str = "") -> tuple[int, list[Fault]]:
    """Fuzz all targets in turn until the time is up; how often, and the faults found."""
    return run_targets(all_targets(), seconds, seed, only)


def main() -> int:
    return fuzz(run, about=__doc__, what="permissions", unit="requests", example="DeleteAcls")


if __name__ == "__main__":
    sys.exit(main())
