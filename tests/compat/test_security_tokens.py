"""Delegation tokens with Kafka's own tool: made, seen, renewed, ended, and used to log in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.compat.guarded import Guarded, guarded_broker
from tests.harness.java import JavaHost
from tests.harness.process import eventually
from tests.harness.topics import admin_client, create_topic

TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"


@pytest.fixture(scope="module")
def guarded(against: str, java: JavaHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(against, java, tmp_path_factory.mktemp("tokens")) as broker:
        yield broker


def tokens_in(output: str) -> list[dict[str, str]]:
    """The tokens that the tool shows, each as its columns."""
    rows = []
    for line in output.splitlines():
        found = re.match(r"(\S{22})\s+(\S{80,})\s+(\S+)\s+(\S+)\s", line)
        if found:
            rows.append(dict(zip(("id", "hmac", "owner", "requester"), found.groups(), strict=True)))
    return rows


def shown(guarded: Guarded, who: str, *words: str) -> list[dict[str, str]]:
    answer = guarded.tool(TOKENS, who, *words)
    assert answer["status"] == 0, answer
    return tokens_in(answer["stdout"])


def create(guarded: Guarded, who: str = "alice", *words: str) -> dict[str, str]:
    (token,) = shown(guarded, who, "--create", "--max-life-time-period", "-1", *words)
    return token


def described(guarded: Guarded, who: str, owner: str = "User:alice") -> list[str]:
    # Without an owner the tool asks for the tokens of nobody, and is told of none.
    return [token["id"] for token in shown(guarded, who, "--describe", "--owner-principal", owner)]


def test_a_token_is_made_seen_renewed_and_ended(guarded: Guarded) -> None:
    token = create(guarded, "alice", "--renewer-principal", "User:bob")
    assert (token["owner"], token["requester"]) == ("User:alice", "User:alice")
    eventually(lambda: token["id"] in described(guarded, "alice"))
    assert shown(guarded, "alice", "--describe") == []
    assert token["id"] in described(guarded, "bob")
    assert token["id"] not in described(guarded, "carol")
    renewal = ("--renew", "--renew-time-period", "3600000", "--hmac", token["hmac"])
    renewed = guarded.tool(TOKENS, "bob", *renewal)
    assert renewed["status"] == 0, renewed
    assert "Completed renew operation" in renewed["stdout"]
    refused = guarded.tool(TOKENS, "carol", *renewal)
    assert refused["status"] == 1
    assert "DelegationTokenOwnerMismatchException" in refused["stdout"] + refused["stderr"]
    ended = guarded.tool(TOKENS, "alice", "--expire", "--expiry-time-period", "-1", "--hmac", token["hmac"])
    assert ended["status"] == 0, ended
    eventually(lambda: token["id"] not in described(guarded, "alice"))
    gone = guarded.tool(TOKENS, "alice", *renewal)
    assert "DelegationTokenNotFoundException" in gone["stdout"] + gone["stderr"]


def test_a_token_for_another_needs_a_permission(guarded: Guarded) -> None:
    words = ("--create", "--max-life-time-period", "-1", "--owner-principal", "User:bob")
    refused = guarded.tool(TOKENS, "carol", *words)
    assert refused["status"] == 1
    assert "DelegationTokenAuthorizationException" in refused["stdout"] + refused["stderr"]
    allowed = guarded.tool(
        ACLS,
        None,
        *("--add", "--allow-principal", "User:carol", "--user-principal", "User:bob"),
        *("--operation", "CreateTokens", "--operation", "DescribeTokens"),
    )
    assert allowed["status"] == 0, allowed
    eventually(lambda: guarded.tool(TOKENS, "carol", *words)["status"] == 0)
    (token, *_) = shown(guarded, "carol", "--describe", "--owner-principal", "User:bob")
    assert (token["owner"], token["requester"]) == ("User:bob", "User:carol")


def test_who_logs_in_with_a_token_is_its_owner_and_gets_no_other_token(guarded: Guarded) -> None:
    token = create(guarded)
    eventually(lambda: token["id"] in described(guarded, "alice"))
    settings = guarded.properties(token["id"], token["hmac"], is_token=True)
    refused = guarded.tool_with(TOKENS, settings, "--create", "--max-life-time-period", "-1")
    assert refused["status"] == 1
    assert "Delegation Token requests are not allowed" in refused["stdout"] + refused["stderr"]
    topic = create_topic(guarded.process.bootstrap, "tokens")

    def listed() -> list[str]:
        output: str = guarded.tool_with(TOPICS, settings, "--list")["stdout"]
        return output.split()

    assert topic not in listed()
    allow_alice(guarded, topic)
    eventually(lambda: topic in listed())


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
        settings = guarded.client(user) | {"sasl.password": "wrong", "log_level": 0}
        client = AdminClient(settings | {"error_cb": lambda error: errors.append(error.str())})
        eventually(lambda: bool(client.poll(0.1) or errors))
        with pytest.raises(confluent_kafka.KafkaException):
            client.list_topics(timeout=1)
        said = next(error for error in errors if "SASL" in error)
        return re.sub(r"\(after .*|^.*?: ", "", said).replace(user, "USER")

    assert refusal("alice") == refusal("nobody")
