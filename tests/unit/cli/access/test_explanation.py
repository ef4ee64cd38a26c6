"""What decides about a resource, as far as a cluster tells it."""

from __future__ import annotations

from typing import Any

from millrace.cli.access.explanation import Rules, read_rules
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.config_resources import ADMINISTRATORS, MEMBERS, PREFIX, ROLE_TYPE, TENANT_TYPE
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.access.fake_cluster import FakeCluster

TOPIC = ResourceType.TOPIC


def rules_of(cluster: FakeCluster, name: str) -> Rules:
    broker: Any = cluster.broker
    return read_rules(broker, TOPIC, name)


def words(rules: Rules, principal: str, name: str, *groups: str) -> tuple[bool, str]:
    found = rules.explain(principal, Operation.READ, TOPIC, name, host="::1", groups=groups)
    return found.ruling.is_allowed, " ".join(found.words)


def test_roles_count_for_their_members_and_groups(cluster: FakeCluster) -> None:
    cluster.allow("Role:ops", Operation.READ, TOPIC, "orders")
    cluster.named[ROLE_TYPE, "ops"] = {MEMBERS: "User:carol;Group:staff"}
    rules = rules_of(cluster, "orders")
    assert words(rules, "User:carol", "orders") == (
        True,
        (
            "User:carol may read topic 'orders' from ::1. The rule: Role:ops may read topic 'orders'. "
            "User:carol has the role ops."
        ),
    )
    assert words(rules, "User:dora", "orders", "staff")[0]
    assert not words(rules, "User:dora", "orders")[0]


def test_tenants_stand_for_permissions(cluster: FakeCluster) -> None:
    cluster.named[TENANT_TYPE, "acme"] = {PREFIX: "acme.", ADMINISTRATORS: "User:fay"}
    allowed, said = words(rules_of(cluster, "acme.x"), "User:fay", "acme.x")
    assert allowed
    assert "a tenant stands for it" in said


def test_settings_of_the_authorizer_count(cluster: FakeCluster) -> None:
    cluster.settings = {"super.users": "User:a;User:b", "allow.everyone.if.no.acl.found": "true"}
    rules = rules_of(cluster, "free")
    assert rules.authorizer.super_users == {"User:a", "User:b"}
    assert words(rules, "User:anybody", "free")[0]
    assert rules.notes == ()


def test_a_cluster_without_roles_is_explained_without_them(cluster: FakeCluster) -> None:
    """Apache Kafka: no such type, no such version, and super users that it keeps to itself."""
    cluster.list_version = 0
    cluster.settings = {"super.users": None}
    cluster.allow("User:alice", Operation.READ, TOPIC, "orders")
    rules = rules_of(cluster, "orders")
    assert words(rules, "User:alice", "orders")[0]
    assert rules.notes == ("the broker does not tell its super.users: they may do everything",)


def test_roles_that_one_may_not_see_are_noted(cluster: FakeCluster) -> None:
    names = cluster.broker._replies
    list_key = next(key for key in names if key.name == "LIST_CONFIG_RESOURCES")
    names[list_key] = _refused  # type: ignore[index]  # a dictionary of this test
    (note,) = rules_of(cluster, "orders").notes
    assert "roles and tenants are left out" in note


def _refused(_request: Any) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), config_resources=[])
