"""Brokers that ask who everybody is: their settings and files, and the settings of those who may come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from millrace.security.credentials.first_users import render_first_users
from millrace.security.credentials.scram import ScramMechanism, derive_credential
from tests.harness.certificates import Authority
from tests.harness.millrace import MillraceProcess
from tests.harness.process import free_port

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class SecuredMillrace(MillraceProcess):
    """Its settings are in a file that nobody else reads, not among the arguments. Listeners may use TLS."""

    @override
    def command(self) -> Sequence[str]:
        file = self.directory / "broker.properties"
        file.touch(mode=0o600)
        settings = {"metrics.listener": f"{self.host}:{self.http_port}", **self.settings}
        file.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()))
        plain, self.settings, self.set_http_port = self.settings, {"listeners": "in the file"}, False
        try:
            words = [word for word in super().command() if not word.startswith("listeners=")]
        finally:
            self.settings = plain
        return [*(word for word in words if word != "--set"), "--config", str(file)]

    @override
    def answers(self, timeout_s: float = 2.0) -> bool:
        try:
            return self.http("/readyz", timeout_s)[0] == 200
        except OSError:
            return False


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def first_users_file(folder: Path, users: Mapping[str, str]) -> Path:
    """Users with their passwords, as SCRAM credentials for the first start of a cluster."""
    file = folder / "first-users.json"
    file.write_text(
        render_first_users({
            name: {
                mechanism: derive_credential(mechanism, password, salt=b"some salt", iterations=4_096)
                for mechanism in ScramMechanism
            }
            for name, password in users.items()
        })
    )  # fmt: skip
    return file


def two_listeners(broker: MillraceProcess, *, clients: str, inside: str) -> dict[str, str]:
    """One for clients at the broker's port, one for the other brokers at another."""
    return {
        "listeners": f"CLIENTS://127.0.0.1:{broker.port},INSIDE://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": f"CLIENTS:{clients},INSIDE:{inside}",
        "inter.broker.listener.name": "INSIDE",
    }


def certificate_settings(authority: Authority, name: str, *, client_auth: str = "none") -> dict[str, str]:
    return {
        "ssl.keystore.location": str(authority.identity(name).both_file),
        "ssl.truststore.location": str(authority.file),
        "ssl.client.auth": client_auth,
    }


def scram_client(
    protocol: str, user: str, password: str, authority: Authority | None = None
) -> dict[str, str]:
    """The settings of librdkafka."""
    trusted = {} if authority is None else {"ssl.ca.location": str(authority.file)}
    return {
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
        **trusted,
    }
