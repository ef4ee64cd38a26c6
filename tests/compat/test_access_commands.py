"""`millrace acl`, `user` and `quota` with Millrace, and with Apache Kafka, which has no roles."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from tests.conftest import broker_class
from tests.harness.millrace import run_millrace
from tests.harness.process import BrokerProcess

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Everybody is nobody here, and nobody may do everything: these tests are about what the commands do.
    "super.users": "User:ANONYMOUS",
}


class Commands:
    def __init__(self, broker: BrokerProcess) -> None:
        self._bootstrap = broker.bootstrap

    def run(self, *words: str, stdin: str = "", code: int = 0) -> str:
        answer = run_millrace(*words, "--bootstrap-server", self._bootstrap, stdin=stdin)
        assert answer.returncode == code, answer
        assert "Traceback" not in answer.stderr
        return answer.stdout if code == 0 else answer.stderr


@pytest.fixture(scope="module")
def commands(against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    process = broker_class(against)(tmp_path_factory.mktemp("commanded"), SETTINGS)
    process.start()
    yield Commands(process)
    process.end()


def test_permissions_are_added_explained_and_removed(commands: Commands) -> None:
    commands.run("acl", "add", "alice", "read,write", "topic:orders")
    commands.run(
        "acl", "add", "User:*", "read", "topic:secret-", "--prefixed", "--deny", "--host", "10.1.2.3"
    )
    rows = [line.split() for line in commands.run("acl", "list").splitlines()[1:]]
    assert rows == [
        ["User:alice", "allow", "read", "topic:orders", "anywhere"],
        ["User:alice", "allow", "write", "topic:orders", "anywhere"],
        ["User:*", "deny", "read", "topic:secret-*", "10.1.2.3"],
    ]
    explained = commands.run("acl", "explain", "alice", "describe", "topic:orders")
    assert "User:alice may describe topic 'orders'" in explained
    assert "Whoever may read may also describe." in explained
    assert "may not" in commands.run("acl", "explain", "bob", "read", "topic:orders")
    denied = commands.run(
        "acl", "explain", "bob", "read", "topic:secret-plans", "--host", "10.1.2.3", "--json"
    )
    assert orjson.loads(denied)["rule"].startswith("MatchingAcl(")
    assert commands.run("acl", "remove", "--principal", "alice").count("removed:") == 2
    assert commands.run("acl", "list", "topic:orders").splitlines()[1:] == []


def test_users_come_and_go(commands: Commands) -> None:
    commands.run("user", "add", "alice", "--password-file", "-", stdin="geheim")
    assert "alice  SCRAM-SHA-512        4096" in commands.run("user", "list")
    assert "is there already" in commands.run(
        "user", "add", "alice", "--password-file", "-", stdin="x", code=1
    )
    commands.run("user", "passwd", "alice", "--password-file", "-", "--iterations", "8192", stdin="neu")
    assert "8192" in commands.run("user", "describe", "alice")
    commands.run("user", "delete", "alice")
    assert "alice" not in commands.run("user", "list")


def test_quotas_come_and_go(commands: Commands) -> None:
    commands.run("quota", "set", "--user", "alice", "--client-id", "app", "producer_byte_rate=1000")
    commands.run("quota", "set", "--default-user", "request_percentage=12.5")
    commands.run("quota", "set", "--ip", "127.0.0.9", "connection_creation_rate=7")
    assert [line.rsplit(None, 2) for line in commands.run("quota", "list").splitlines()[1:]] == [
        ["ip=127.0.0.9", "connection_creation_rate", "7"],
        ["user=(default)", "request_percentage", "12.5"],
        ["user=alice client-id=app", "producer_byte_rate", "1000"],
    ]
    assert "quota" in commands.run("quota", "set", "--user", "alice", "no_such_quota=1", code=1).lower()
    commands.run("quota", "remove", "--default-user", "request_percentage")
    assert "12.5" not in commands.run("quota", "list")


def test_roles_are_of_millrace_alone(commands: Commands, against: str) -> None:
    if against == "millrace":
        commands.run("role", "create", "ops", "--member", "alice")
        assert "User:alice" in commands.run("role", "list")
    else:
        assert "this cluster has no roles" in commands.run("role", "list", code=1)
        assert "this cluster has no tenants" in commands.run("tenant", "list", code=1)
