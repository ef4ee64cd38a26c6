"""Brokers with a second listener that asks for TLS 1.3 and a login by SCRAM, the same on both systems.

The plain listener stays, for what is not measured: topics, users, counting records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from benchmarks.servers import HOST
from tools.kafka_distribution import free_port

LISTENER: Final = "SECURE"
MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4_096
USER: Final = "bench"
PASSWORD: Final = "only-for-this-benchmark"
TIMEOUT_S: Final = 30.0
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True, slots=True)
class Secured:
    """The secured listener of one broker: where it is, and what both ends have to know."""

    directory: Path
    port: int

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def client(self) -> dict[str, str]:
        """librdkafka's settings."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self._authority_file),
        }

    def write_java_client(self) -> Path:
        """The properties of Kafka's own clients."""
        path = self.directory / "client.properties"
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{_MODULE} username="{USER}" password="{PASSWORD}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority_file),
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def broker_settings(self, plain_port: int, others: Mapping[str, str] | None = None) -> dict[str, str]:
        """The settings that add this listener; `others` are further listeners, as name and address with their
        protocol being PLAINTEXT."""
        listeners = {"PLAINTEXT": f"{HOST}:{plain_port}", LISTENER: self.bootstrap}
        bound = {**listeners, **(others or {})}
        protocols = {**dict.fromkeys(bound, "PLAINTEXT"), LISTENER: "SASL_SSL"}
        prefix = f"listener.name.{LISTENER.lower()}"
        return {
            "listeners": ",".join(f"{name}://{address}" for name, address in bound.items()),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{of}" for name, of in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": MECHANISM,
            f"{prefix}.sasl.enabled.mechanisms": MECHANISM,
            f"{prefix}.{MECHANISM.lower()}.sasl.jaas.config": f"{_MODULE};",
            f"{prefix}.ssl.keystore.type": "PEM",
            f"{prefix}.ssl.keystore.location": str(self._server_file),
            f"{prefix}.ssl.enabled.protocols": "TLSv1.3",
            f"{prefix}.ssl.client.auth": "none",
        }

    def write_certificates(self) -> None:
        """An authority of this run's own, and the broker's certificate, both with ECDSA keys."""
        self.directory.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self._authority_file)
        server = authority.issue_cert(HOST, "localhost")
        key = serialization.load_pem_private_key(server.private_key_pem.bytes(), None)
        # Java reads keys in this form alone.
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"".join(certificate.bytes() for certificate in server.cert_chain_pems)
        self._server_file.write_bytes(pem + chain)

    def create_user(self, admin: AdminClient) -> None:
        """Make the user whom the generators log in as. Raises KafkaException."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS)
        wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for made in admin.alter_user_scram_credentials([wanted]).values():
            made.result(TIMEOUT_S)

    @property
    def _authority_file(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def _server_file(self) -> Path:
        return self.directory / "server.pem"


def secured_in(directory: Path) -> Secured:
    """A listener at a free port, with its files in this directory."""
    return Secured(directory / "secured", free_port())
