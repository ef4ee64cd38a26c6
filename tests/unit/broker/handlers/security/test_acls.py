"""Permissions over the wire: set, found and removed by those who may, and by tenants for themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.handlers.security.acls import SHOWN_PER_TURN, describe_acls, encoded_in_portions
from millrace.broker.network.context import RequestContext
from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType
from millrace.security.acls.decisions import Decisions
from millrace.security.acls.filters import EVERYTHING, AclFilter
from millrace.security.principals import NOBODY, Identity
from millrace.security.tenants import Tenant
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_acls import AclCreation, CreateAclsRequest
from millrace.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from millrace.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tests.unit.broker.handlers.broker import DIALLED, Broker
from tests.unit.broker.handlers.security.people import ALICE, BOB, ROOT, on_cluster
from tests.unit.security.acls.models import acl

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def create(broker: Broker, *acls: Acl, who: Identity = ROOT, version: int = 3) -> list[tuple[int, str]]:
    creations = [
        AclCreation(
            resource_type=each.resource_type,
            resource_name=each.name,
            resource_pattern_type=each.pattern,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        for each in acls
    ]
    results = broker.ask(CreateAclsRequest(creations=creations), version, identity=who).results
    return [(result.error_code, result.error_message) for result in results]


def fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def ask(broker: Broker, wanted: AclFilter = EVERYTHING, *, who: Identity = ROOT, version: int = 3) -> Any:
    return broker.ask(DescribeAclsRequest(**fields(wanted)), version, identity=who)


def described(
    broker: Broker, wanted: AclFilter = EVERYTHING, *, who: Identity = ROOT, version: int = 3
) -> set[Acl]:
    response = ask(broker, wanted, who=who, version=version)
    assert (response.error_code, response.error_message) == (0, "")
    return {
        Acl(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            each.principal,
            each.host,
            Operation(each.operation),
            Permission(each.permission_type),
        )
        for resource in response.resources
        for each in resource.acls
    }


def delete(broker: Broker, *filters: AclFilter, who: Identity = ROOT) -> list[tuple[int, str | None, int]]:
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**fields(wanted)) for wanted in filters])
    results = broker.ask(request, 3, identity=who).filter_results
    return [(result.error_code, result.error_message, len(result.matching_acls)) for result in results]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_permissions_are_set_found_and_removed(guarded: Broker, version: int) -> None:
    wanted = {
        acl("orders", Operation.READ),
        acl("orders", Operation.WRITE, "Role:writers"),
        acl("ord...", Operation.ALL, host="127.0.0.1", permission=Permission.DENY),
        acl("g", Operation.READ, resource_type=ResourceType.GROUP),
    }
    assert create(guarded, *wanted, version=version) == [(0, "")] * 4
    assert create(guarded, acl("orders", Operation.READ)) == [(0, "")]
    assert described(guarded, version=version) == wanted
    (orders,) = [each for each in ask(guarded).resources if each.resource_name == "orders"]
    assert len(orders.acls) == 2
    match = AclFilter(ResourceType.TOPIC, "orders", PatternType.MATCH)
    assert len(described(guarded, match)) == 3
    writers = AclFilter(principal="Role:writers")
    assert delete(guarded, writers, match, AclFilter(name="nothing")) == [
        (0, None, 1),
        (0, None, 3),
        (0, None, 0),
    ]
    assert described(guarded) == {acl("g", Operation.READ, resource_type=ResourceType.GROUP)}


def test_every_permission_has_an_outcome_of_its_own(guarded: Broker) -> None:
    good = acl("orders")
    outcomes = create(
        guarded,
        good,
        acl(""),
        acl("cluster", resource_type=ResourceType.CLUSTER),
        good._replace(resource_type=ResourceType.ANY),
        good._replace(pattern=PatternType.MATCH),
        good._replace(operation=Operation.UNKNOWN),
        good._replace(permission=Permission.ANY),
        good._replace(principal="alice"),
    )
    assert [code for code, _ in outcomes] == [ErrorCode.NONE, *[ErrorCode.INVALID_REQUEST] * 7]
    assert outcomes[1][1] == "Invalid empty resource name"
    assert described(guarded) == {good}


@pytest.mark.parametrize(
    "wanted",
    [
        AclFilter(resource_type=ResourceType.UNKNOWN),
        AclFilter(pattern=PatternType.UNKNOWN),
        AclFilter(operation=Operation.UNKNOWN),
        AclFilter(permission=Permission.UNKNOWN),
    ],
)
def test_filters_that_nobody_understands_match_nothing_and_delete_nothing(
    guarded: Broker, wanted: AclFilter
) -> None:
    create(guarded, acl("orders"))
    assert described(guarded, wanted) == set()
    ((code, message, _), (other_code, _, count)) = delete(guarded, wanted, AclFilter(name="orders"))
    assert code == ErrorCode.INVALID_REQUEST
    assert message
    assert (other_code, count) == (ErrorCode.NONE, 1)


def test_where_nothing_is_restricted_there_are_no_permissions(broker: Broker) -> None:
    disabled = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    assert create(broker, acl("orders"), acl("x"), who=NOBODY) == [disabled] * 2
    assert delete(broker, EVERYTHING, who=NOBODY) == [(*disabled, 0)]
    response = ask(broker, who=NOBODY)
    assert (response.error_code, response.error_message) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
    )


def test_who_may_not_learns_and_changes_nothing(guarded: Broker) -> None:
    assert create(guarded, acl("a"), acl("b"), who=ALICE) == [(REFUSED, REFUSED.message)] * 2
    assert delete(guarded, EVERYTHING, who=ALICE) == [(REFUSED, REFUSED.message, 0)]
    response = ask(guarded, who=ALICE)
    assert (response.error_code, response.error_message) == (REFUSED, REFUSED.message)
    guarded.allow(on_cluster(Operation.DESCRIBE))
    assert described(guarded, who=ALICE) == {on_cluster(Operation.DESCRIBE)}
    assert create(guarded, acl("a"), who=ALICE) == [(REFUSED, REFUSED.message)]
    guarded.allow(on_cluster(Operation.ALTER))
    assert create(guarded, acl("a"), who=ALICE) == [(0, "")]
    assert delete(guarded, AclFilter(name="a"), who=ALICE) == [(0, None, 1)]


def test_administrators_of_a_tenant_see_and_set_permissions_of_theirs_alone(guarded: Broker) -> None:
    team = Tenant(name="team", prefix="team.", administrators=("User:alice",), members=("User:bob",))
    guarded.run(guarded.metadata.security.put_tenant(team, is_new=True))
    guarded.allow(acl("others", principal="User:dave"))
    mine = acl("team.orders", principal="User:guest")
    assert create(guarded, mine, acl("others"), acl("*"), who=ALICE) == [
        (0, ""),
        (REFUSED, REFUSED.message),
        (REFUSED, REFUSED.message),
    ]
    assert described(guarded, who=ALICE) == {mine}
    assert len(described(guarded)) == 2
    assert delete(guarded, EVERYTHING, who=ALICE) == [(0, None, 1)]
    assert described(guarded) == {acl("others", principal="User:dave")}
    # A member of a tenant administers nothing.
    assert create(guarded, mine, who=BOB) == [(REFUSED, REFUSED.message)]
    assert ask(guarded, who=BOB).error_code == REFUSED


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 1, 127, 128, SHOWN_PER_TURN, 2 * SHOWN_PER_TURN + 1])
def test_portions_are_together_what_the_whole_is(version: int, number: int) -> None:
    shown = AclDescription(principal="User:x", host="*", operation=3, permission_type=3)
    resources = [
        DescribeAclsResource(resource_type=2, resource_name=f"{place}\0", pattern_type=3, acls=[shown])
        for place in range(number)
    ]
    whole = schema.response_encoder(ApiKey.DESCRIBE_ACLS, version)(DescribeAclsResponse(resources=resources))
    assert asyncio.run(encoded_in_portions(resources, version)) == whole


def test_others_get_their_turn_while_many_permissions_are_shown(guarded: Broker) -> None:
    many = [acl(f"topic-{number}") for number in range(2 * SHOWN_PER_TURN)]
    guarded.allow(*many)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def describe() -> int:
        counting = asyncio.get_running_loop().create_task(count())
        decisions = Decisions(guarded.services.access, ROOT, DIALLED.peer_host)
        context = RequestContext(3, "test", DIALLED, guarded.services, decisions)
        named = AclFilter(principal="User:me", name=None)
        encoded = await describe_acls(context, DescribeAclsRequest(**fields(named)))
        counting.cancel()
        assert isinstance(encoded, bytes), "made portion by portion"
        response: Any = schema.response_decoder(ApiKey.DESCRIBE_ACLS, 3)(encoded, 0)
        return len(response.resources)

    assert guarded.run(describe()) == len(many)
    # Twice while they are looked for, and twice while the answer is made.
    assert turns >= 4
