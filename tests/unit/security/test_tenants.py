"""What a tenant stands for, what is its own, and what is too much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.binding import Operation, ResourceType, check
from millrace.security.acls.index import AclIndex
from millrace.security.principals import user
from millrace.security.quotas.entities import entity
from millrace.security.tenants import (
    NO_TENANTS,
    InvalidTenant,
    Tenant,
    TenantHeld,
    TenantLimits,
    TenantOverLimit,
    TenantTable,
    WhenFull,
    check_tenant,
)
from tests.unit.security.acls.models import acl

TEAM = Tenant(
    name="team",
    prefix="team.",
    administrators=("User:boss",),
    members=("User:dev", "Group:devs"),
    limits=TenantLimits(
        bytes_in_per_s=100, bytes_out_per_s=200, partitions=10, stored_bytes=1_000, connections=2
    ),
)
OTHER = Tenant(name="other", prefix="other.")
TABLE = TenantTable({"team": TEAM, "other": OTHER})


@pytest.mark.parametrize(
    "who,operation,kind,name,is_allowed",
    [
        ("boss", Operation.CREATE, ResourceType.TOPIC, "team.orders", True),
        ("boss", Operation.ALTER_CONFIGS, ResourceType.GROUP, "team.g", True),
        ("boss", Operation.READ, ResourceType.TOPIC, "other.orders", False),
        ("boss", Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster", False),
        ("dev", Operation.WRITE, ResourceType.TOPIC, "team.orders", True),
        ("dev", Operation.DESCRIBE, ResourceType.TOPIC, "team.orders", True),
        ("dev", Operation.READ, ResourceType.GROUP, "team.g", True),
        ("dev", Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "team.x", True),
        ("dev", Operation.CREATE, ResourceType.TOPIC, "team.orders", False),
        ("dev", Operation.DELETE, ResourceType.TOPIC, "team.orders", False),
        ("stranger", Operation.DESCRIBE, ResourceType.TOPIC, "team.orders", False),
    ],
)
def test_a_tenant_stands_for_permissions(
    who: str, operation: Operation, kind: ResourceType, name: str, is_allowed: bool
) -> None:
    for found in TEAM.acls():
        check(found)
    rules = Authorizer(tenant_acls=AclIndex(TEAM.acls()))
    assert rules.allows(rules.subject(user(who), "h"), operation, kind, name) == is_allowed


def test_a_tenant_stands_for_quotas() -> None:
    assert TEAM.quotas() == (
        entity(tenant="team"),
        {"producer_byte_rate": 100.0, "consumer_byte_rate": 200.0},
    )
    assert OTHER.quotas() == (entity(tenant="other"), {})


def test_names_and_people_belong_to_one_tenant() -> None:
    assert TABLE.owner_of("team.orders") is TEAM
    assert TABLE.owner_of("teams") is None
    assert TABLE.tenant_of(["User:x", "Group:devs"]) is TEAM
    assert TABLE.tenant_of(["User:x"]) is None
    assert (len(TABLE), len(NO_TENANTS)) == (2, 0)


def test_administrators_set_permissions_about_their_own_names() -> None:
    assert TABLE.may_administer(["User:boss"], acl("team.orders"))
    assert TABLE.may_administer(["User:boss"], acl("team...."))
    assert not TABLE.may_administer(["User:boss"], acl("tea..."))
    assert not TABLE.may_administer(["User:dev"], acl("team.orders"))
    assert not TABLE.may_administer(["User:boss"], acl("other.orders"))
    assert not TABLE.may_administer(["User:boss"], acl("team.x", resource_type=ResourceType.USER))
    assert TABLE.administered_by(["User:*", "User:boss"]) == [TEAM]
    assert TABLE.administered_by(["User:dev", "User:*"]) == []


def test_what_is_over_a_limit_is_refused_in_the_way_that_it_should() -> None:
    TEAM.check_partitions(present=7, added=3)
    with pytest.raises(TenantOverLimit, match="7 partitions and may have 10"):
        TEAM.check_partitions(present=7, added=4)
    TEAM.check_storage(999)
    with pytest.raises(TenantHeld, match="may store 1000"):
        TEAM.check_storage(1_000)
    with pytest.raises(TenantOverLimit):
        replace(TEAM, when_full=WhenFull.REJECT).check_storage(1_000)
    TEAM.check_connections(1)
    with pytest.raises(TenantOverLimit, match="2 connections"):
        TEAM.check_connections(2)
    OTHER.check_partitions(present=10**9, added=1)
    OTHER.check_storage(10**18)
    OTHER.check_connections(10**6)


@pytest.mark.parametrize(
    "wrong,words",
    [
        (replace(OTHER, name=""), "1 to 100 characters"),
        (replace(OTHER, prefix=""), "a prefix has"),
        (replace(OTHER, prefix="__x"), "the cluster's own"),
        (replace(OTHER, prefix="_"), "the cluster's own"),
        (replace(OTHER, prefix="*"), "cannot begin with '*'"),
        (replace(OTHER, members=("dev",)), "principalType:principalName"),
        (replace(OTHER, members=("User:*",)), "names nobody"),
        (replace(OTHER, limits=TenantLimits(partitions=0)), "partitions must be greater than 0"),
    ],
)
def test_what_cannot_be_a_tenant_is_refused(wrong: Tenant, words: str) -> None:
    with pytest.raises(InvalidTenant, match=words):
        check_tenant(wrong)


@pytest.mark.parametrize(
    "wrong,words",
    [
        (Tenant(name="x", prefix="team.sub."), "would share names"),
        (Tenant(name="x", prefix="te"), "would share names"),
        (Tenant(name="x", prefix="x.", members=("User:boss",)), "belongs to tenant 'team' already"),
    ],
)
def test_tenants_share_neither_names_nor_people(wrong: Tenant, words: str) -> None:
    with pytest.raises(InvalidTenant, match=words):
        TABLE.check(wrong)
    TABLE.check(replace(TEAM, members=()))


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("xyz")), max_size=5))
def test_a_table_changed_step_by_step_is_the_one_made_at_once(steps: list[dict[str, str | None]]) -> None:
    table, model = NO_TENANTS, dict[str, Tenant]()
    for step in steps:
        changes = {
            name: None if prefix is None else Tenant(name=name, prefix=prefix)
            for name, prefix in step.items()
        }
        table = table.updated(changes)
        model = {name: tenant for name, tenant in {**model, **changes}.items() if tenant is not None}
    assert table == TenantTable(model)
