"""`millrace role`: who has which role, and what it may do."""

from __future__ import annotations

from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.config_resources import MEMBERS, ROLE_TYPE
from tests.unit.cli.access.fake_cluster import FakeCluster


def test_a_role_is_made_given_taken_and_deleted(cluster: FakeCluster) -> None:
    assert cluster.done("role", "create", "ops", "--member", "carol") == "created role ops\n"
    assert "is there already" in cluster.failed("role", "create", "ops")
    cluster.done("role", "grant", "ops", "dora", "Group:staff")
    assert cluster.named[ROLE_TYPE, "ops"] == {MEMBERS: "User:carol;User:dora;Group:staff"}
    cluster.done("role", "revoke", "ops", "carol")
    assert cluster.json("role", "list") == [{"role": "ops", "members": ["User:dora", "Group:staff"]}]
    assert cluster.done("role", "list").splitlines()[1].split(None, 1) == ["ops", "User:dora, Group:staff"]
    assert cluster.done("role", "delete", "ops") == "deleted role ops\n"
    assert cluster.named == {}


def test_a_role_that_is_not_there_is_not_made_by_giving_it(cluster: FakeCluster) -> None:
    for words in (
        ("grant", "ops", "dora"),
        ("revoke", "ops", "dora"),
        ("delete", "ops"),
        ("describe", "ops"),
    ):
        assert "there is no role ops" in cluster.failed("role", *words)
    assert cluster.named == {}


def test_a_role_is_shown_with_what_it_may_do(cluster: FakeCluster) -> None:
    cluster.done("role", "create", "ops")
    cluster.allow("Role:ops", Operation.ALL, ResourceType.CLUSTER, "kafka-cluster")
    cluster.allow("User:ops", Operation.READ, ResourceType.TOPIC, "t")
    shown = cluster.done("role", "describe", "ops")
    assert "Members:  nobody" in shown
    assert "User:ops" not in shown
    assert cluster.json("role", "describe", "ops") == [
        {"role": "ops", "members": [], "permissions": ["Role:ops may do everything to the cluster"]}
    ]


def test_permissions_of_a_deleted_role_stay_unless_they_are_named(cluster: FakeCluster) -> None:
    cluster.allow("Role:ops", Operation.READ, ResourceType.TOPIC, "t")
    cluster.done("role", "create", "ops")
    told = cluster.run("role", "delete", "ops").output
    assert "1 permissions still name it" in told
    assert len(cluster.acls) == 1
    cluster.done("role", "create", "ops")
    cluster.done("role", "delete", "ops", "--with-acls")
    assert cluster.acls == []


def test_a_cluster_of_others_has_no_roles(cluster: FakeCluster) -> None:
    cluster.list_version = 0
    assert "this cluster has no roles" in cluster.failed("role", "list")
