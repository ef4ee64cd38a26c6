"""`millrace user`: credentials that the broker keeps, of passwords that it never sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.config_resources import MEMBERS, ROLE_TYPE
from tests.unit.cli.access.fake_cluster import FakeCluster


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text("geheim\n")
    return str(file)


def test_a_user_is_added_by_a_hash(cluster: FakeCluster, password: str) -> None:
    said = cluster.run("user", "add", "alice", "--password-file", password).output
    assert said == "added user alice\n"
    (sent,) = cluster.users["alice"].values()
    assert (sent.mechanism, sent.iterations) == (2, 4096)
    assert b"geheim" not in sent.salted_password + sent.salt
    assert "is there already" in cluster.failed("user", "add", "alice", "--password-file", password)


def test_a_password_comes_over_standard_input(cluster: FakeCluster) -> None:
    cluster.done(
        "user", "add", "a", "--password-file", "-", "--mechanism", "scram-sha-256", "--iterations", "8192",
        stdin="geheim",
    )  # fmt: skip
    assert {kind: each.iterations for kind, each in cluster.users["a"].items()} == {1: 8192}


def test_a_password_is_no_argument(cluster: FakeCluster) -> None:
    assert "No such option" in cluster.failed("user", "add", "alice", "--password", "geheim")
    assert cluster.users == {}


def test_a_changed_password_counts_for_every_mechanism(cluster: FakeCluster, password: str) -> None:
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    cluster.done("user", "add", "alice", *both, "--password-file", password)
    before = dict(cluster.users["alice"])
    cluster.done("user", "passwd", "alice", "--password-file", password)
    after = cluster.users["alice"]
    assert all(after[kind].salt != before[kind].salt for kind in (1, 2))
    assert "there is no user bob" in cluster.failed("user", "passwd", "bob", "--password-file", password)


def test_users_are_listed_shown_and_deleted(cluster: FakeCluster, password: str) -> None:
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512")
    cluster.done("user", "add", "bob", "--password-file", password)
    cluster.done("user", "add", "alice", *both, "--password-file", password)
    assert [line.split() for line in cluster.done("user", "list").splitlines()[1:]] == [
        ["alice", "SCRAM-SHA-256", "4096"],
        ["alice", "SCRAM-SHA-512", "4096"],
        ["bob", "SCRAM-SHA-512", "4096"],
    ]
    assert [each["user"] for each in cluster.json("user", "list")] == ["alice", "bob"]
    cluster.done("user", "delete", "alice", "--mechanism", "SCRAM-SHA-256")
    assert list(cluster.users["alice"]) == [2]
    cluster.done("user", "delete", "alice")
    assert list(cluster.users) == ["bob"]
    assert "there is no user alice" in cluster.failed("user", "delete", "alice")


def test_a_user_is_shown_with_roles_and_permissions(cluster: FakeCluster, password: str) -> None:
    cluster.done("user", "add", "alice", "--password-file", password)
    cluster.named[ROLE_TYPE, "ops"] = {MEMBERS: "User:alice"}
    cluster.named[ROLE_TYPE, "dev"] = {MEMBERS: "User:bob"}
    cluster.allow("User:alice", Operation.READ, ResourceType.TOPIC, "t")
    assert cluster.json("user", "describe", "alice") == [
        {
            "user": "alice",
            "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}],
            "roles": ["ops"],
            "permissions": ["User:alice may read topic 't'"],
        }
    ]
    # One who logs in otherwise has permissions all the same.
    cluster.list_version = 0
    shown = cluster.done("user", "describe", "CN=eve")
    assert "not by a password that is stored here" in shown
    assert "Roles:   none" in shown
