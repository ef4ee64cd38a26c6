"""A broker with two listeners: one without logins, for those who administer it, and one with SCRAM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.conftest import broker_class
from tests.harness.java import JavaHost
from tests.harness.kafka import KafkaProcess
from tests.harness.process import BrokerProcess, eventually, free_port
from tests.harness.topics import admin_client

JAAS: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Whoever comes by the listener without logins administers the cluster.
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "the secret of all brokers",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.login.scram-sha-256.sasl.jaas.config": f"{JAAS};",
}
USERS: Final = ("alice", "bob", "carol")


@dataclass(frozen=True)
class Guarded:
    process: BrokerProcess
    login_port: int
    java: JavaHost
    directory: Path

    @property
    def logins(self) -> str:
        """Where users log in."""
        return f"127.0.0.1:{self.login_port}"

    def properties(self, name: str, password: str, *, is_token: bool = False) -> str:
        """A file of client settings for Kafka's tools."""
        words = f'{JAAS} username="{name}" password="{password}"' + (" tokenauth=true" if is_token else "")
        path = self.directory / f"{name}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\n"
            "sasl.mechanism=SCRAM-SHA-256\n"
            f"sasl.jaas.config={words};\n"
            "default.api.timeout.ms=15000\nrequest.timeout.ms=10000\n"
        )
        return str(path)

    def client(self, user: str) -> dict[str, Any]:
        """Settings of librdkafka for a user."""
        return {
            "bootstrap.servers": self.logins,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password_of(user),
        }

    def tool(self, main: str, user: str | None, *words: str) -> Any:
        """Run a tool of Kafka's as a user, or as whoever administers the cluster."""
        if user is None:
            return self.java.tool(main, ["--bootstrap-server", self.process.bootstrap, *words])
        return self.tool_with(main, self.properties(user, password_of(user)), *words)

    def tool_with(self, main: str, settings: str, *words: str) -> Any:
        return self.java.tool(main, ["--bootstrap-server", self.logins, "--command-config", settings, *words])


def password_of(user: str) -> str:
    return f"{user}-secret"


@contextmanager
def guarded_broker(against: str, java: JavaHost, directory: Path) -> Iterator[Guarded]:
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
    try:
        administration = admin_client(process.bootstrap)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        for user in USERS:
            upsertion = UserScramCredentialUpsertion(user, info, password_of(user).encode())
            for made in administration.alter_user_scram_credentials([upsertion]).values():
                made.result(10)
        eventually(lambda: len(administration.describe_user_scram_credentials().result(10)) == len(USERS))
        yield Guarded(process, login_port, java, directory)
    finally:
        process.end()
