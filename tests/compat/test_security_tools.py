"""Kafka's own tools and librdkafka administer permissions, passwords and quotas, as they do with Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.conftest import broker_class
from tests.harness.java import JavaHost
from tests.harness.process import BrokerProcess, eventually
from tests.harness.topics import admin_client, unique_name

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Everybody is nobody here, and nobody may do everything: these tests are about what the tools do.
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "the secret of all brokers",
}


@pytest.fixture(scope="module")
def guarded(against: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = broker_class(against)(tmp_path_factory.mktemp("guarded"), SETTINGS)
    process.start()
    yield process
    process.end()


class Tools:
    def __init__(self, java: JavaHost, broker: BrokerProcess) -> None:
        self._java = java
        self._bootstrap = broker.bootstrap

    def run(self, main: str, *words: str) -> Any:
        return self._java.tool(main, ["--bootstrap-server", self._bootstrap, *words])

    def ok(self, main: str, *words: str) -> str:
        answer = self.run(main, *words)
        assert answer["status"] == 0, answer
        output: str = answer["stdout"]
        return output


@pytest.fixture(scope="module")
def tools(java: JavaHost, guarded: BrokerProcess) -> Tools:
    return Tools(java, guarded)


@pytest.fixture
def admin(guarded: BrokerProcess) -> Any:
    return admin_client(guarded.bootstrap)


class TestKafkaAcls:
    def test_permissions_are_added_listed_and_removed(self, tools: Tools) -> None:
        topic = unique_name("acl")
        allowed = ("--allow-principal", "User:alice", "--operation", "Read", "--operation", "Write")
        added = tools.ok(ACLS, "--add", *allowed, "--topic", topic)
        assert f"ResourcePattern(resourceType=TOPIC, name={topic}, patternType=LITERAL)" in added
        tools.ok(
            ACLS,
            *("--add", "--deny-principal", "User:CN=bob,OU=ops", "--deny-host", "127.0.0.1"),
            *("--operation", "All", "--topic", topic, "--resource-pattern-type", "prefixed"),
        )

        def listed(*words: str) -> set[tuple[str, str, str, str]]:
            found = re.findall(
                r"\(principal=(.*?), host=(.*?), operation=(.*?), permissionType=(.*?)\)",
                tools.ok(ACLS, "--list", *words),
            )
            return set(found)

        eventually(lambda: len(listed("--topic", topic)) == 2)
        assert listed("--topic", topic) == {
            ("User:alice", "*", "READ", "ALLOW"),
            ("User:alice", "*", "WRITE", "ALLOW"),
        }
        matched = listed("--topic", f"{topic}-more", "--resource-pattern-type", "match")
        assert ("User:CN=bob,OU=ops", "127.0.0.1", "ALL", "DENY") in matched
        of_bob = listed("--principal", "User:CN=bob,OU=ops")
        assert of_bob == {("User:CN=bob,OU=ops", "127.0.0.1", "ALL", "DENY")}
        tools.ok(ACLS, "--remove", "--force", *allowed[:4], "--topic", topic)
        eventually(lambda: len(listed("--topic", topic)) == 1)
        anything = ("--topic", topic, "--resource-pattern-type", "any")
        tools.ok(ACLS, "--remove", "--force", *anything)
        eventually(lambda: listed(*anything) == set())

    def test_producers_and_consumers_get_what_they_need(self, tools: Tools) -> None:
        topic, group = unique_name("acl"), unique_name("group")
        tools.ok(ACLS, "--add", "--producer", "--allow-principal", "User:p", "--topic", topic)
        consumer = ("--consumer", "--allow-principal", "User:c", "--topic", topic, "--group", group)
        tools.ok(ACLS, "--add", *consumer)
        eventually(lambda: "User:c" in tools.ok(ACLS, "--list", "--group", group))
        listed = tools.ok(ACLS, "--list", "--topic", topic)
        for operation in ("WRITE", "DESCRIBE", "CREATE"):
            assert f"(principal=User:p, host=*, operation={operation}, permissionType=ALLOW)" in listed
        assert "(principal=User:c, host=*, operation=READ, permissionType=ALLOW)" in listed
        tools.ok(ACLS, "--add", "--cluster", "--allow-principal", "User:p", "--operation", "IdempotentWrite")
        assert "name=kafka-cluster" in tools.ok(ACLS, "--list", "--cluster")

    def test_roles_get_permissions_like_users(self, tools: Tools) -> None:
        topic = unique_name("acl")
        tools.ok(ACLS, "--add", "--allow-principal", "Role:readers", "--operation", "Read", "--topic", topic)
        eventually(lambda: "principal=Role:readers" in tools.ok(ACLS, "--list", "--topic", topic))

    def test_permissions_for_tokens_of_users(self, tools: Tools) -> None:
        allowed = ("--allow-principal", "User:alice", "--operation", "CreateTokens")
        tools.ok(ACLS, "--add", *allowed, "--user-principal", "User:bob")
        listed = tools.ok(ACLS, "--list", "--user-principal", "User:bob")
        assert "operation=CREATE_TOKENS" in listed
        assert "resourceType=USER" in listed


def test_without_an_authorizer_there_are_no_permissions(java: JavaHost, broker: BrokerProcess) -> None:
    answer = Tools(java, broker).run(ACLS, "--list")
    assert answer["status"] == 1
    assert "No Authorizer is configured on the broker" in answer["stdout"] + answer["stderr"]


class TestKafkaConfigs:
    def test_passwords_are_set_shown_and_removed(self, tools: Tools) -> None:
        user = unique_name("user")
        entity = ("--entity-type", "users", "--entity-name", user)
        first = "SCRAM-SHA-256=[iterations=8192,password=one]"
        second = "SCRAM-SHA-512=[password=two]"
        # Kafka's controller takes one of each user in a request, although its tool sends both.
        both = tools.run(CONFIGS, "--alter", *entity, "--add-config", f"{first},{second}")
        assert both["status"] == 1
        assert "cannot be altered twice in the same request" in both["stderr"]
        for password in (first, second):
            altered = tools.ok(CONFIGS, "--alter", *entity, "--add-config", password)
            assert f"Completed updating config for user {user}." in altered

        def described() -> str:
            return tools.ok(CONFIGS, "--describe", *entity)

        shown = f"SCRAM credential configs for user-principal '{user}' are "
        eventually(lambda: shown in described())
        assert "SCRAM-SHA-256=iterations=8192" in described()
        assert "SCRAM-SHA-512=iterations=4096" in described()
        tools.ok(CONFIGS, "--alter", *entity, "--delete-config", "SCRAM-SHA-256")
        eventually(lambda: "SCRAM-SHA-256" not in described())
        missing = tools.run(CONFIGS, "--alter", *entity, "--delete-config", "SCRAM-SHA-256")
        assert missing["status"] == 1
        assert "does not exist" in missing["stdout"] + missing["stderr"]
        few = tools.run(
            CONFIGS, "--alter", *entity, "--add-config", "SCRAM-SHA-256=[iterations=4095,password=x]"
        )
        assert few["status"] == 1

    @pytest.mark.parametrize(
        "entity, shown",
        [
            (("--entity-type", "users", "--entity-name", "{}"), "user-principal '{}'"),
            (("--entity-type", "clients", "--entity-name", "{}"), "client-id '{}'"),
            (
                ("--entity-type", "users", "--entity-name", "{}", "--entity-type", "clients")
                + ("--entity-name", "c"),
                "user-principal '{}', client-id 'c'",
            ),
            (
                ("--entity-type", "users", "--entity-name", "{}", "--entity-type", "clients")
                + ("--entity-default",),
                "user-principal '{}', the default client-id",
            ),
        ],
        ids=["user", "client", "pair", "default of a user"],
    )
    def test_quotas_are_set_shown_and_removed(
        self, tools: Tools, entity: tuple[str, ...], shown: str
    ) -> None:
        name = unique_name("quota")
        words = tuple(word.format(name) for word in entity)
        quotas = "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5"
        tools.ok(CONFIGS, "--alter", *words, "--add-config", quotas)

        def described() -> str:
            return tools.ok(CONFIGS, "--describe", *words)

        eventually(lambda: shown.format(name) in described())
        for quota in ("producer_byte_rate=1024.0", "consumer_byte_rate=2048.0", "request_percentage=12.5"):
            assert quota in described()
        tools.ok(
            CONFIGS,
            *("--alter", *words, "--delete-config"),
            "producer_byte_rate,consumer_byte_rate,request_percentage",
        )
        eventually(lambda: "byte_rate" not in described())

    def test_quotas_of_addresses(self, tools: Tools) -> None:
        entity = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
        tools.ok(CONFIGS, "--alter", *entity, "--add-config", "connection_creation_rate=7")
        eventually(
            lambda: (
                "Quota configs for ip '10.1.2.3' are connection_creation_rate=7.0"
                in tools.ok(CONFIGS, "--describe", *entity)
            )
        )
        defaults = ("--entity-type", "ips", "--entity-default")
        tools.ok(CONFIGS, "--alter", *defaults, "--add-config", "connection_creation_rate=99")
        eventually(lambda: "99.0" in tools.ok(CONFIGS, "--describe", *defaults))
        for words in (entity, defaults):
            tools.ok(CONFIGS, "--alter", *words, "--delete-config", "connection_creation_rate")


def test_delegation_tokens_are_refused_on_a_listener_that_proves_nothing(
    tools: Tools, tmp_path: Path
) -> None:
    nothing = tmp_path / "client.properties"
    nothing.write_text("")
    for words in (("--describe",), ("--create", "--max-life-time-period", "-1")):
        answer = tools.run(TOKENS, "--command-config", str(nothing), *words)
        assert answer["status"] == 1
        assert "Delegation Token requests are not allowed" in answer["stdout"] + answer["stderr"]


class TestLibrdkafka:
    def test_permissions(self, admin: Any) -> None:
        topic = unique_name("rd")

        def binding(principal: str, operation: AclOperation) -> AclBinding:
            return AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                principal,
                "*",
                operation,
                AclPermissionType.ALLOW,
            )

        wanted = [binding("User:a", AclOperation.READ), binding("Role:r", AclOperation.WRITE)]
        for made in admin.create_acls(wanted).values():
            assert made.result(10) is None

        def filtered(principal: str | None) -> AclBindingFilter:
            return AclBindingFilter(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.MATCH,
                # The library takes None for anybody, and its types do not say so.
                cast("str", principal),
                cast("str", None),
                AclOperation.ANY,
                AclPermissionType.ANY,
            )

        eventually(lambda: len(admin.describe_acls(filtered(None)).result(10)) == 2)
        found = {(each.principal, each.operation) for each in admin.describe_acls(filtered(None)).result(10)}
        assert found == {("User:a", AclOperation.READ), ("Role:r", AclOperation.WRITE)}
        (removed,) = admin.delete_acls([filtered("User:a")]).values()
        assert [each.principal for each in removed.result(10)] == ["User:a"]
        eventually(lambda: len(admin.describe_acls(filtered(None)).result(10)) == 1)
        colonless = binding("alice", AclOperation.READ)
        (refused,) = admin.create_acls([colonless]).values()
        with pytest.raises(confluent_kafka.KafkaException) as error:
            refused.result(10)
        assert error.value.args[0].name() in ("INVALID_REQUEST", "UNKNOWN")

    def test_passwords(self, admin: Any) -> None:
        user = unique_name("rd")
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 10_000)
        (made,) = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, info, b"password", b"salt")]
        ).values()
        assert made.result(10) is None
        eventually(lambda: user in admin.describe_user_scram_credentials().result(10))
        described = admin.describe_user_scram_credentials([user])[user].result(10)
        assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
            (ScramMechanism.SCRAM_SHA_256, 10_000)
        ]
        absent = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        (refused,) = admin.alter_user_scram_credentials([absent]).values()
        with pytest.raises(confluent_kafka.KafkaException) as error:
            refused.result(10)
        assert error.value.args[0].name() == "RESOURCE_NOT_FOUND"
        present = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
        (removed,) = admin.alter_user_scram_credentials([present]).values()
        assert removed.result(10) is None
        eventually(lambda: user not in admin.describe_user_scram_credentials().result(10))
        with pytest.raises(confluent_kafka.KafkaException) as error:
            admin.describe_user_scram_credentials([user])[user].result(10)
        assert error.value.args[0].name() == "RESOURCE_NOT_FOUND"
