"""A broker that holds secrets in every place shows none of them, in none of the ways in which it can speak:
its output at the level of debugging, its files of audit, metrics, described settings, answers, arguments, and
what commands say of failures."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from millrace.client.blocking_connection import BlockingConnection
from millrace.client.errors import BrokerRefused
from millrace.client.security import read_security
from millrace.security.credentials import scram
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from millrace.wire.messages.metadata import MetadataRequest
from tests.harness.certificates import Authority
from tests.harness.etcd import EtcdProcess
from tests.harness.millrace import run_millrace
from tests.harness.process import eventually
from tests.harness.secured import STANDARD_AUTHORIZER, SecuredMillrace, first_users_file

pytestmark = pytest.mark.slow

SECRETS = {
    "the password of a user of PLAIN": "Zwetschge-plain-7141",
    "the broker's own password": "Zwetschge-broker-7142",
    "a password of the first users": "Zwetschge-first-7143",
    "a password set over the wire": "Zwetschge-wire-7144",
    "the password of etcd": "Zwetschge-etcd-7145",
    "the password of the private key": "Zwetschge-key-7146",
    "the key of delegation tokens": "Zwetschge-delegation-7147",
    "the token of the metrics": "Zwetschge-metrics-7148",
    "a wrong password": "Zwetschge-wrong-7149",
    "a password in a refused setting": "Zwetschge-refused-7150",
    "a misspelt secret": "Zwetschge-misspelt-7151",
}
PLAIN, BROKER, FIRST, WIRE, ETCD, KEY, DELEGATION, METRICS, WRONG, REFUSED, MISSPELT = SECRETS.values()
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
USERS = f'PlainLoginModule required username="broker" password="{BROKER}" user_broker="{BROKER}" '


def forms(secret: str) -> Iterator[str]:
    """How it would look if somebody had packed it."""
    raw = secret.encode()
    yield secret
    yield urllib.parse.quote(secret, safe="")
    yield raw.hex()
    # Inside other text the beginning may be packed together with what stands before it.
    for shift in range(3):
        yield base64.b64encode(b"x" * shift + raw).decode()[4 if shift else 0 : -4]
    for name in ("sha256", "sha512"):
        digest = hashlib.new(name, raw).digest()
        yield digest.hex()
        yield base64.b64encode(digest).decode()


def derived_forms(password: str, salt: bytes) -> Iterator[str]:
    """What SCRAM makes of it, of which each lets somebody log in or pose as the broker."""
    for mechanism in scram.ScramMechanism:
        salted = scram.salted_password(mechanism, password, salt, 4_096)
        credential = scram.credential_of_salted(mechanism, salted, salt=salt, iterations=4_096)
        for value in (salted, credential.stored_key, credential.server_key):
            yield value.hex()
            yield base64.b64encode(value).decode()


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = Authority(folder / "authority")
        self.identity = authority.identity("broker", password=KEY)
        self.oauth_token = unsigned_token("alice")
        self.etcd = EtcdProcess(folder / "etcd")
        self.broker = SecuredMillrace(folder / "broker")
        self.shown: dict[str, str] = {}
        """All that could be read of the broker, by where it was."""
        port = self.broker.port
        self.broker.settings |= {
            "node.id": "1",
            "logging.level": "DEBUG",
            "audit.enable": "true",
            "audit.log.file": str(folder / "audit.log"),
            "metadata.store": "etcd",
            "etcd.endpoints": self.etcd.endpoint,
            "etcd.username": "root",
            "etcd.password": ETCD,
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.oauthbearer.unsecured.enable": "true",
            JAAS: f'{USERS} user_admin="{PLAIN}";',
            "ssl.keystore.key": self.identity.key,
            "ssl.keystore.certificate.chain": self.identity.certificate,
            "ssl.key.password": KEY,
            "delegation.token.secret.key": DELEGATION,
            "metrics.auth.token": METRICS,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:admin;User:broker",
            "metadata.bootstrap.credentials.file": str(first_users_file(folder, {"first": FIRST})),
        }

    def start(self) -> None:
        self.etcd.start()
        self.etcd.control("user", "add", f"root:{ETCD}")
        self.etcd.control("user", "grant-role", "root", "root")
        self.etcd.control("auth", "enable")
        self.broker.start()

    def end(self) -> None:
        self.broker.end()
        self.etcd.end()

    def client(self, mechanism: str, user: str, password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
            "error_cb": self._failed,
        }

    def _failed(self, error: object) -> None:
        self.shown[f"an error of librdkafka {len(self.shown)}"] = f"{error} {error!r}"

    def admin(self) -> Any:
        return AdminClient(self.client("PLAIN", "admin", PLAIN))

    def collect(self) -> None:
        self.shown["the output"] = self.broker.output_path.read_text()
        for file in self.folder.glob("audit.log*"):
            self.shown[file.name] = file.read_text()
        self.shown["the arguments"] = Path(f"/proc/{self.broker.pid}/cmdline").read_text()

    def check(self, derived: list[str]) -> None:
        wanted = [(what, form) for what, secret in SECRETS.items() for form in forms(secret)]
        wanted += [("keys of SCRAM", form) for form in derived]
        wanted += [("the private key", line) for line in self.identity.key.splitlines()[1:-1]]
        wanted += [("a token of OAuth", part) for part in self.oauth_token.split(".") if len(part) > 20]
        for where, text in self.shown.items():
            for what, form in wanted:
                at = text.find(form)
                assert at < 0, f"{what} is in {where}: ...{text[max(0, at - 200) : at + 80]}..."


def unsigned_token(subject: str) -> str:
    now = int(time.time())
    claims = {"sub": subject, "iat": now, "exp": now + 600, "jti": "Zwetschge-oauth-7152"}
    parts = ({"alg": "none"}, claims)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + "."
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("secrets"))
    try:
        world.start()
        yield world
    finally:
        world.end()


def broken_logins(world: World) -> None:
    """Of users that exist and users that do not, by all mechanisms; and what is no login at all."""
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        for user in ("first", "nobody"):
            client: Any = AdminClient(world.client(mechanism, user, WRONG) | {"socket.timeout.ms": 2_000})
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                client.list_topics(timeout=2)
            world.shown[f"a refusal {mechanism} {user}"] = f"{refused.value} {refused.value!r}"
    # A password where another protocol was expected.
    for said in (WRONG.encode(), b"\0\0\0\x20" + WRONG.encode(), f"GET /{WRONG} HTTP/1.1\r\n\r\n".encode()):
        with socket.create_connection(("127.0.0.1", world.broker.port), timeout=10) as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4_096):
                pass


def good_logins(world: World) -> None:
    for mechanism, user, password in (("PLAIN", "admin", PLAIN), ("SCRAM-SHA-256", "first", FIRST)):
        client: Any = AdminClient(world.client(mechanism, user, password))
        client.list_topics(timeout=20)
    for token in (world.oauth_token, world.oauth_token[:-8]):
        consumer: Any = confluent_kafka.Consumer({
            "bootstrap.servers": world.broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _config, token=token: (token, time.time() + 600),
            "group.id": "g",
            "log_level": 0,
            "error_cb": world._failed,
        })  # fmt: skip
        try:
            consumer.list_topics(timeout=3)
        except confluent_kafka.KafkaException as error:
            world.shown["a token that was cut"] = repr(error)
        consumer.close()


def changes(world: World) -> list[str]:
    """Passwords and settings over the wire; returns what SCRAM makes of the passwords."""
    admin = world.admin()
    salt = b"salt-of-the-wire-user"
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    upsertion = UserScramCredentialUpsertion("wired", kind, WIRE.encode(), salt)
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(20)
    described = admin.describe_user_scram_credentials(["wired", "first"])
    world.shown["described users"] = "".join(str(vars(each.result(20))) for each in described.values())
    AdminClient(world.client("SCRAM-SHA-256", "wired", WIRE)).list_topics(timeout=20)
    for name, value, is_taken in (
        (JAAS, f'{USERS} user_admin="{PLAIN}" user_more="{REFUSED}";', True),
        (JAAS, f'{USERS} user_admin="{REFUSED}', False),
        (JAAS, f"Nonsense {REFUSED}", False),
        ("etcd.password", REFUSED, False),
        ("delegation.token.secret.key", REFUSED, False),
        ("metrics.auth.tokn", MISSPELT, False),
        ("ssl.key.password", REFUSED, True),
    ):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
        error = future.exception(20)
        assert (error is None) is is_taken, f"{name}: {error}"
        world.shown[f"the answer for {name} {len(world.shown)}"] = f"{error} {error!r}"
    resource = ConfigResource(ResourceType.BROKER, "1")
    (future,) = admin.describe_configs([resource]).values()
    described = future.result(20)
    assert described[JAAS].value is None
    assert described[JAAS].is_sensitive
    world.shown["described settings"] = "".join(
        f"{entry.name}={entry.value} {entry.synonyms}\n" for entry in described.values()
    )
    return [*derived_forms(WIRE, salt), *derived_forms(FIRST, b"some salt")]


def delegation_tokens(world: World) -> list[str]:
    """A token is made, used, and used with an HMAC that is not its own; returns the forms of the real one."""
    admin = read_security({
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "admin",
        "sasl.password": PLAIN,
    })  # fmt: skip
    connection = BlockingConnection("127.0.0.1", world.broker.port, client_id="t", timeout_s=20)
    connection.open_with("tests", admin)
    request = CreateDelegationTokenRequest(max_lifetime_ms=600_000)
    made = connection.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, request)
    connection.close()
    assert made.error_code == 0
    shown = base64.b64encode(made.hmac).decode()
    for password in (shown, base64.b64encode(WRONG.encode()).decode()):
        login = read_security({
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": made.token_id,
            "sasl.password": password,
            "sasl.delegation.token": "true",
        })  # fmt: skip
        connection = BlockingConnection("127.0.0.1", world.broker.port, client_id="t", timeout_s=20)
        try:
            connection.open_with("tests", login)
            assert password == shown
            connection.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        except BrokerRefused as refused:
            world.shown["the refusal of a token"] = f"{refused} {refused!r}"
        finally:
            connection.close()
    assert "the refusal of a token" in world.shown
    return [shown, made.hmac.hex()]


def web_pages(world: World) -> None:
    for path, headers in (
        ("/metrics", f"Authorization: Bearer {METRICS}\r\n"),
        ("/metrics", f"Authorization: Bearer {WRONG}\r\n"),
        ("/metrics", ""),
        ("/healthz", ""),
        (f"/{WRONG}", f"Authorization: Bearer {METRICS}\r\n"),
        ("/v1/groups", f"Authorization: Bearer {METRICS}\r\n"),
    ):
        with socket.create_connection(("127.0.0.1", world.broker.http_port), timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
        world.shown[f"the page {len(world.shown)}"] = answer.decode()
    assert sum("200 " in text[:13] for text in world.shown.values()) >= 3


def commands(world: World) -> None:
    """Commands with the wrong password, with a broken file, and a broker with settings that cannot work."""
    file = world.folder / "client.properties"
    for password, words in ((WRONG, ("topic", "list")), (PLAIN, ("config", "describe", "broker", "1"))):
        lines = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": password,
        }
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        done = run_millrace(*words, "-b", world.broker.bootstrap, "--command-config", str(file))
        world.shown[f"millrace {' '.join(words)}"] = done.stdout + done.stderr
    broken = world.folder / "broken.properties"
    for number, line in enumerate((
        f"{JAAS}={USERS} user_admin={REFUSED}",
        f"listener.name.nobody.plain.sasl.jaas.config={REFUSED}",
        f"etcd.pasword={MISSPELT}",
        f"metrics.auth.token={REFUSED[:9]}",
        f"delegation.token.secret.keyy={MISSPELT}",
        f"listeners=SSL://127.0.0.1:0\nssl.keystore.key={REFUSED}",
    )):  # fmt: skip
        broken.write_text("listeners=SASL_PLAINTEXT://127.0.0.1:0\nsasl.enabled.mechanisms=PLAIN\n" + line)
        done = run_millrace("serve", "--config", str(broken), "--data-dir", str(world.folder / "never"))
        assert done.returncode != 0, line
        world.shown[f"a start that fails {number}"] = done.stdout + done.stderr


def test_no_secret_is_ever_shown(world: World) -> None:
    broken_logins(world)
    good_logins(world)
    derived = changes(world) + delegation_tokens(world)
    web_pages(world)
    commands(world)
    # What it says when it cannot reach its store, and when it is ended in the middle of everything.
    world.etcd.kill()
    eventually(lambda: "etcd" in world.broker.output_path.read_text().lower(), 30)
    world.collect()
    os.kill(world.broker.pid, signal.SIGABRT)
    eventually(lambda: not world.broker.is_running(), 30)
    world.shown["the end of the output"] = world.broker.output_path.read_text()
    assert "DEBUG" in world.shown["the output"], "at the level of debugging"
    world.check(derived)
