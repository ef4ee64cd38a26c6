"""The files of `millrace secure init` as text: settings of a broker, and of clients of every kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MECHANISM: Final = "SCRAM-SHA-512"
BROKER_USER: Final = "broker"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class Login:
    """A user with the password, which no representation shows."""

    user: str
    password: str = field(repr=False)

    def jaas(self) -> str:
        """For Java's clients, and for brokers among themselves."""
        return f"{_SCRAM_MODULE} required username={_quoted(self.user)} password={_quoted(self.password)};"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where everything is, and how brokers are reached."""

    directory: Path
    listen: str
    """Where the broker listens."""
    advertised: str
    """How clients reach it."""
    data: Path
    servers: str = ""
    """The brokers that clients try first, where there are several."""

    @property
    def authority(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def authority_key(self) -> Path:
        return self.directory / "ca-key.pem"

    @property
    def broker_store(self) -> Path:
        return self.directory / "broker.pem"

    @property
    def first_users(self) -> Path:
        return self.directory / "first-users.json"


def broker_settings(place: Place, admin: str, between_brokers: Login, token_secret: str) -> str:
    """`broker.toml`."""
    settings = {
        "listeners": f"SASL_SSL://{place.listen}",
        "advertised.listeners": f"SASL_SSL://{place.advertised}",
        "log.dirs": str(place.data),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(place.broker_store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place.authority),
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "inter.broker.listener.name": "SASL_SSL",
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": between_brokers.jaas(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{admin};User:{between_brokers.user}",
        "delegation.token.secret.key": token_secret,
        "metadata.bootstrap.credentials.file": str(place.first_users),
    }
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()]
    return "# Made by `millrace secure init`. Holds a password: for the broker alone.\n" + _text(lines)


def java_properties(place: Place, login: Login) -> str:
    """`client.properties`, which the command line takes as well."""
    return _properties(
        {
            "bootstrap.servers": place.servers or place.advertised,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": login.jaas(),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(place.authority),
        }
    )


def librdkafka_settings(place: Place, login: Login) -> dict[str, str]:
    return {
        "bootstrap.servers": place.servers or place.advertised,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": login.user,
        "sasl.password": login.password,
        "ssl.ca.location": str(place.authority),
    }


def librdkafka_properties(place: Place, login: Login) -> str:
    """`client.librdkafka.properties`, also for kcat (`-F`)."""
    return _properties(librdkafka_settings(place, login))


def spark_options(place: Place, login: Login) -> str:
    """`client.spark.json`: options of the Spark source and sink."""
    options = {f"kafka.{name}": value for name, value in librdkafka_settings(place, login).items()}
    return json.dumps(options, indent=2) + "\n"


def _properties(settings: Mapping[str, str]) -> str:
    escaped = {name: value.replace("\\", "\\\\") for name, value in settings.items()}
    return _text([f"{name}={value}" for name, value in escaped.items()])


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
