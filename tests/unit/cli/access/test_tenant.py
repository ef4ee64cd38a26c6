"""`millrace tenant`: names, people and limits."""

from __future__ import annotations

import pytest

from millrace.security.config_resources import TENANT_TYPE
from tests.unit.cli.access.fake_cluster import FakeCluster

KEY = (TENANT_TYPE, "acme")


def create(cluster: FakeCluster) -> None:
    cluster.done(
        "tenant", "create", "acme", "--prefix", "acme.", "--admin", "dora", "--member", "Role:dev",
        "--limit", "partitions.max=10", "--when-full", "reject",
    )  # fmt: skip


def test_a_tenant_is_made_with_its_people_and_limits(cluster: FakeCluster) -> None:
    create(cluster)
    assert cluster.named[KEY] == {
        "prefix": "acme.",
        "administrators": "User:dora",
        "members": "Role:dev",
        "partitions.max": "10",
        "when.full": "reject",
    }
    assert "is there already" in cluster.failed("tenant", "create", "acme", "--prefix", "b.")
    assert cluster.named[KEY]["prefix"] == "acme."


def test_people_come_and_go_in_one_command(cluster: FakeCluster) -> None:
    create(cluster)
    cluster.done(
        "tenant", "alter", "acme", "--add-admin", "fay", "--remove-admin", "dora", "--add-member", "eve",
        "--no-limit", "partitions.max", "--limit", "connections.max=5",
    )  # fmt: skip
    assert cluster.named[KEY] == {
        "prefix": "acme.",
        "administrators": "User:fay",
        "members": "Role:dev;User:eve",
        "when.full": "reject",
        "connections.max": "5",
    }


def test_tenants_are_shown(cluster: FakeCluster) -> None:
    create(cluster)
    row = cluster.done("tenant", "list").splitlines()[1].split()
    assert row == ["acme", "acme.*", "User:dora", "1", "partitions.max=10"]
    document = {
        "tenant": "acme",
        "prefix": "acme.",
        "administrators": ["User:dora"],
        "members": ["Role:dev"],
        "limits": {"partitions": 10},
        "when_full": "reject",
    }
    assert cluster.json("tenant", "list") == cluster.json("tenant", "describe", "acme") == [document]
    assert "When full:       reject" in cluster.done("tenant", "describe", "acme")


def test_a_tenant_is_deleted(cluster: FakeCluster) -> None:
    create(cluster)
    cluster.done("tenant", "delete", "acme")
    assert cluster.named == {}
    for words in (("delete", "acme"), ("describe", "acme"), ("alter", "acme", "--add-member", "x")):
        assert "there is no tenant acme" in cluster.failed("tenant", *words)


@pytest.mark.parametrize(
    "words, said",
    [
        (("alter", "acme"), "nothing to change"),
        (("alter", "acme", "--limit", "speed=1"), "a tenant has no limit speed; there are bytes.in"),
        (("alter", "acme", "--limit", "partitions.max=1", "--no-limit", "partitions.max"), "both name"),
    ],
)
def test_what_cannot_be_changed_is_told(cluster: FakeCluster, words: tuple[str, ...], said: str) -> None:
    create(cluster)
    assert said in cluster.failed("tenant", *words)
