"""`millrace acl`: what is asked, what is shown, and which rule decides."""

from __future__ import annotations

from millrace.security.acls.binding import Acl, Operation, PatternType, Permission, ResourceType
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.access.fake_cluster import FakeCluster

TOPIC, READ, WRITE = ResourceType.TOPIC, Operation.READ, Operation.WRITE


def test_permissions_are_added_for_every_operation_and_host(cluster: FakeCluster) -> None:
    said = cluster.done(
        "acl", "add", "alice", "read,write", "topic:orders", "--host", "::1", "--host", "10.0.0.1"
    )
    assert said.splitlines() == [
        "User:alice may read topic 'orders' from ::1",
        "User:alice may read topic 'orders' from 10.0.0.1",
        "User:alice may write topic 'orders' from ::1",
        "User:alice may write topic 'orders' from 10.0.0.1",
    ]
    assert len(cluster.acls) == 4
    cluster.done("acl", "add", "Role:ops", "all", "group:g-", "--prefixed", "--deny")
    assert cluster.acls[-1] == Acl(
        ResourceType.GROUP, "g-", PatternType.PREFIXED, "Role:ops", "*", Operation.ALL, Permission.DENY
    )


def test_a_refusal_is_told_for_each(cluster: FakeCluster) -> None:
    cluster.refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    said = cluster.failed("acl", "add", "alice", "read,write", "topic:orders")
    assert said.count("not by you (CLUSTER_AUTHORIZATION_FAILED)") >= 2


def test_permissions_are_listed_by_what_they_are_about(cluster: FakeCluster) -> None:
    cluster.allow("User:alice", READ, TOPIC, "orders")
    cluster.allow("User:bob", WRITE, TOPIC, "orders")
    cluster.allow("User:bob", READ, ResourceType.GROUP, "g")
    cluster.acls.append(Acl(TOPIC, "or", PatternType.PREFIXED, "User:*", "*", READ, Permission.DENY))
    table = cluster.done("acl", "list").splitlines()
    assert table[0].split() == ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "FROM"]
    assert [line.split()[3] for line in table[1:]] == ["topic:or*", "topic:orders", "topic:orders", "group:g"]
    assert len(cluster.json("acl", "list", "topic:orders")) == 2
    assert len(cluster.json("acl", "list", "topic:orders", "--matching")) == 3
    assert cluster.json("acl", "list", "--principal", "bob", "--operation", "write") == [
        {
            "principal": "User:bob",
            "permission": "allow",
            "operation": "write",
            "resource_type": "topic",
            "resource": "orders",
            "pattern": "literal",
            "host": "*",
        }
    ]
    assert [each["resource"] for each in cluster.json("acl", "list", "--deny")] == ["or"]
    assert "needs a RESOURCE" in cluster.failed("acl", "list", "--matching")


def test_what_is_listed_is_removed_and_never_everything(cluster: FakeCluster) -> None:
    cluster.allow("User:alice", READ, TOPIC, "orders")
    cluster.allow("User:bob", READ, TOPIC, "orders")
    assert "say which" in cluster.failed("acl", "remove")
    assert cluster.done("acl", "remove", "--principal", "alice") == (
        "removed: User:alice may read topic 'orders'\n"
    )
    assert [acl.principal for acl in cluster.acls] == ["User:bob"]
    assert cluster.done("acl", "remove", "--principal", "alice") == ""


def test_the_rule_that_decides_is_explained(cluster: FakeCluster) -> None:
    cluster.allow("User:alice", READ, TOPIC, "orders")
    assert cluster.done("acl", "explain", "alice", "describe", "topic:orders").splitlines() == [
        "User:alice may describe topic 'orders' from 127.0.0.1.",
        "The rule: User:alice may read topic 'orders'.",
        "Whoever may read may also describe.",
    ]
    (found,) = cluster.json("acl", "explain", "bob", "read", "topic:orders", "--host", "::1")
    assert (found["allowed"], found["rule"], found["host"]) == (False, "DefaultDeny", "::1")
    assert "super user" in cluster.done("acl", "explain", "root", "alter", "cluster")
