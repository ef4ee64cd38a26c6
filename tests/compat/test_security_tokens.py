"""Delegation tokens with Kafka's own tool: made, seen, renewed, ended, and used to log in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.conftest import broker_class
from tests.harness.java import JavaHost
from tests.harness.kafka import KafkaProcess
from tests.harness.process import BrokerProcess, eventually, free_port
from tests.harness.topics import admin_client, create_topic

TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Whoever comes by the listener without logins administers the cluster.
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "the secret of all brokers",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{JAAS};",
}


@dataclass(frozen=True)
class Guarded:
    process: BrokerProcess
    login_port: int
    java: JavaHost
    directory: Path

    @property
    def logins(self) -> str:
        return f"127.0.0.1:{self.login_port}"

    def properties(self, name: str, password: str, *, is_token: bool = False) -> str:
        """A file of client settings for Kafka's tools."""
        words = f'{JAAS} username="{name}" password="{password}"' + (" tokenauth=true" if is_token else "")
        path = self.directory / f"{abs(hash((name, is_token)))}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\n"
            "sasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.jaas.config={words};\n"
            "default.api.timeout.ms=15000\nrequest.timeout.ms=10000\n"
        )
        return str(path)

    def tool(self, who: str, *words: str) -> Any:
        settings = self.properties(who, f"{who}-secret")
        return self.tool_with(settings, *words)

    def tool_with(self, settings: str, *words: str) -> Any:
        return self.java.tool(
            TOKENS, ["--bootstrap-server", self.logins, "--command-config", settings, *words]
        )

    def ok(self, who: str, *words: str) -> list[dict[str, str]]:
        """The tokens that the tool shows, each as its columns."""
        answer = self.tool(who, *words)
        assert answer["status"] == 0, answer
        return tokens_in(answer["stdout"])


def tokens_in(output: str) -> list[dict[str, str]]:
    rows = []
    for line in output.splitlines():
        found = re.match(r"(\S{22})\s+(\S{80,})\s+(\S+)\s+(\S+)\s", line)
        if found:
            rows.append(dict(zip(("id", "hmac", "owner", "requester"), found.groups(), strict=True)))
    return rows


@pytest.fixture(scope="module")
def guarded(against: str, java: JavaHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tokens")
    login_port = free_port()
    process = broker_class(against)(directory / "broker", SETTINGS)
    listeners = f"PLAINTEXT://127.0.0.1:{process.port},LOGIN://127.0.0.1:{login_port}"
    protocols = "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT"
    if isinstance(process, KafkaProcess):
        process.node.settings.update(
            {
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{process.node.controller_port}",
                "advertised.listeners": listeners,
                "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            }
        )
    else:
        process.settings |= {"listeners": listeners, "listener.security.protocol.map": protocols}
    process.start()
    administration = admin_client(process.bootstrap)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for user in ("alice", "bob", "carol"):
        upsertion = UserScramCredentialUpsertion(user, info, f"{user}-secret".encode())
        for made in administration.alter_user_scram_credentials([upsertion]).values():
            made.result(10)
    eventually(lambda: len(administration.describe_user_scram_credentials().result(10)) == 3)
    yield Guarded(process, login_port, java, directory)
    process.end()


def create(guarded: Guarded, who: str = "alice", *words: str) -> dict[str, str]:
    (token,) = guarded.ok(who, "--create", "--max-life-time-period", "-1", *words)
    return token


def described(guarded: Guarded, who: str, owner: str = "User:alice") -> list[str]:
    # Without an owner the tool asks for the tokens of nobody, and is told of none.
    return [token["id"] for token in guarded.ok(who, "--describe", "--owner-principal", owner)]


def test_a_token_is_made_seen_renewed_and_ended(guarded: Guarded) -> None:
    token = create(guarded, "alice", "--renewer-principal", "User:bob")
    assert (token["owner"], token["requester"]) == ("User:alice", "User:alice")
    eventually(lambda: token["id"] in described(guarded, "alice"))
    assert guarded.ok("alice", "--describe") == []
    assert token["id"] in described(guarded, "bob")
    assert token["id"] not in described(guarded, "carol")
    renewal = ("--renew", "--renew-time-period", "3600000", "--hmac", token["hmac"])
    renewed = guarded.tool("bob", *renewal)
    assert renewed["status"] == 0, renewed
    assert "Completed renew operation" in renewed["stdout"]
    refused = guarded.tool("carol", *renewal)
    assert refused["status"] == 1
    assert "DelegationTokenOwnerMismatchException" in refused["stdout"] + refused["stderr"]
    ended = guarded.tool("alice", "--expire", "--expiry-time-period", "-1", "--hmac", token["hmac"])
    assert ended["status"] == 0, ended
    eventually(lambda: token["id"] not in described(guarded, "alice"))
    gone = guarded.tool("alice", *renewal)
    assert "DelegationTokenNotFoundException" in gone["stdout"] + gone["stderr"]


def test_a_token_for_another_needs_a_permission(guarded: Guarded) -> None:
    words = ("--create", "--max-life-time-period", "-1", "--owner-principal", "User:bob")
    refused = guarded.tool("carol", *words)
    assert refused["status"] == 1
    assert "DelegationTokenAuthorizationException" in refused["stdout"] + refused["stderr"]
    allowed = guarded.java.tool(
        ACLS,
        [
            *("--bootstrap-server", guarded.process.bootstrap, "--add", "--allow-principal", "User:carol"),
            *("--operation", "CreateTokens", "--operation", "DescribeTokens", "--user-principal", "User:bob"),
        ],
    )
    assert allowed["status"] == 0, allowed
    eventually(lambda: guarded.tool("carol", *words)["status"] == 0)
    (token, *_) = guarded.ok("carol", "--describe", "--owner-principal", "User:bob")
    assert (token["owner"], token["requester"]) == ("User:bob", "User:carol")


def test_who_logs_in_with_a_token_is_its_owner_and_gets_no_other_token(guarded: Guarded) -> None:
    token = create(guarded)
    eventually(lambda: token["id"] in described(guarded, "alice"))
    settings = guarded.properties(token["id"], token["hmac"], is_token=True)
    refused = guarded.tool_with(settings, "--create", "--max-life-time-period", "-1")
    assert refused["status"] == 1
    assert "Delegation Token requests are not allowed" in refused["stdout"] + refused["stderr"]
    topic = create_topic(guarded.process.bootstrap, "tokens")
    listing = ["--bootstrap-server", guarded.logins, "--command-config", settings, "--list"]
    tool = "org.apache.kafka.tools.TopicCommand"
    assert topic not in guarded.java.tool(tool, listing)["stdout"].split()
    allow_alice(guarded, topic)
    eventually(lambda: topic in guarded.java.tool(tool, listing)["stdout"].split())


def allow_alice(guarded: Guarded, topic: str) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    administration = admin_client(guarded.process.bootstrap)
    for made in administration.create_acls([binding]).values():
        made.result(10)


def test_a_wrong_password_and_an_unknown_user_are_told_the_same(guarded: Guarded) -> None:
    def refusal(user: str) -> str:
        errors: list[str] = []
        settings: dict[str, Any] = {
            "bootstrap.servers": guarded.logins,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": "wrong",
            "error_cb": lambda error: errors.append(error.str()),
            "log_level": 0,
        }
        client = AdminClient(settings)
        eventually(lambda: bool(client.poll(0.1) or errors))
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=1)
        said = next(error for error in errors if "SASL" in error)
        return re.sub(r"\(after .*|^.*?: ", "", said).replace(user, "USER")

    assert refusal("alice") == refusal("nobody")
