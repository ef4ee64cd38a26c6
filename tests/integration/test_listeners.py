"""Real clients over every protocol and mechanism, against one broker process with a listener for each."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
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
from cryptography.hazmat.primitives import serialization
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from kafka import KafkaProducer

from tests.harness.java import JavaHost
from tests.harness.kcat import Kcat
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually, free_port
from tests.harness.tls_files import Authority, parts

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "OPEN": "SASL_PLAINTEXT",
    "CLOSED": "SASL_SSL",
    "BRIEF": "SASL_PLAINTEXT",
}
SASL_MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
SECRET = "hunter2"


class Place(NamedTuple):
    """The broker with all that its clients need."""

    broker: MillraceProcess
    ports: dict[str, int]
    authority: Authority
    certificate: Path
    """Of a client."""
    token: Callable[[], str]

    def bootstrap(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory)
    key = ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})
    keys = directory / "keys.json"
    every: list[Any] = [key]
    keys.write_text(json.dumps(KeySet(every).as_dict(private=False)))

    def token() -> str:
        now = int(time.time())
        claims = {"sub": "carl", "iat": now, "exp": now + 300, "aud": "millrace"}
        return jwt.encode({"alg": "ES256", "kid": "k1"}, claims, key)

    broker = MillraceProcess(directory / "broker")
    ports = {name: free_port() for name in PROTOCOLS}
    ports["PLAINTEXT"] = broker.port
    users = f'{MODULE} required user_alice="{SECRET}";'
    broker.settings |= {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in PROTOCOLS.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "group.initial.rebalance.delay.ms": "0",
        "ssl.keystore.location": str(authority.issue()),
        "ssl.truststore.location": str(authority.file),
        "ssl.allow.dn.changes": "true",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": r"RULE:.*CN=(\w+).*/$1/L",
        "sasl.enabled.mechanisms": ",".join(SASL_MECHANISMS),
        "listener.name.brief.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.brief.connections.max.reauth.ms": "2000",
        **{f"listener.name.{name}.plain.sasl.jaas.config": users for name in ("open", "closed", "brief")},
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.allowed.urls": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "millrace",
    }
    broker.start()
    yield Place(broker, ports, authority, authority.issue("c", name="client", common_name="Dora"), token)
    broker.end()


@pytest.fixture(scope="module", autouse=True)
def _scram_users(place: Place) -> None:
    admin = AdminClient({"bootstrap.servers": place.bootstrap("PLAINTEXT")})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wish = UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), SECRET.encode())
        for outcome in admin.alter_user_scram_credentials([wish]).values():
            outcome.result(timeout=10)


def librdkafka(place: Place, listener: str, mechanism: str | None = None, **more: Any) -> dict[str, Any]:
    protocol = PROTOCOLS[listener]
    config: dict[str, Any] = {
        "bootstrap.servers": place.bootstrap(listener),
        "security.protocol": protocol,
        "logger": _Silent(),
    }
    if "SSL" in protocol:
        config["ssl.ca.location"] = str(place.authority.file)
    if listener == "MUTUAL":
        config["ssl.certificate.location"] = config["ssl.key.location"] = str(place.certificate)
    if mechanism == "OAUTHBEARER":
        config["sasl.mechanism"] = mechanism
        config["oauth_cb"] = lambda _config: (place.token(), time.time() + 200)
    elif mechanism is not None:
        config |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": SECRET}
    return {**config, **more}


class _Silent:
    """A logger that says nothing."""

    def log(self, *_words: object, **_more: object) -> None:
        pass


WAYS = [
    ("PLAINTEXT", None),
    ("TLS", None),
    ("MUTUAL", None),
    *(("OPEN", mechanism) for mechanism in SASL_MECHANISMS),
    *(("CLOSED", mechanism) for mechanism in SASL_MECHANISMS),
]


@pytest.mark.parametrize("listener, mechanism", WAYS)
def test_librdkafka_writes_and_reads(place: Place, listener: str, mechanism: str | None) -> None:
    topic = f"rd-{listener}-{mechanism}".lower()
    values = [b"x" * 1000 + str(number).encode() for number in range(200)]
    producer = Producer(librdkafka(place, listener, mechanism))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    consumer = Consumer(
        librdkafka(place, listener, mechanism, **{"group.id": topic, "auto.offset.reset": "earliest"})
    )
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 20
    while len(found) < len(values) and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(500, 0.2) if message.error() is None]
    consumer.close()
    assert found == values


def python_settings(place: Place, listener: str, mechanism: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": place.bootstrap(listener),
        "security_protocol": PROTOCOLS[listener],
    }
    if "SSL" in PROTOCOLS[listener]:
        settings["ssl_context"] = place.authority.client(place.certificate if listener == "MUTUAL" else None)
    if mechanism is not None:
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": SECRET,
        }
    return settings


PYTHON_WAYS = [("TLS", None), ("MUTUAL", None), ("OPEN", "SCRAM-SHA-256"), ("CLOSED", "PLAIN")]
PYTHON_WAYS += [("CLOSED", "SCRAM-SHA-512")]


@pytest.mark.parametrize("listener, mechanism", PYTHON_WAYS)
def test_kafka_python_writes(place: Place, listener: str, mechanism: str | None) -> None:
    producer = KafkaProducer(**python_settings(place, listener, mechanism))
    sent = producer.send(f"kp-{listener}-{mechanism}".lower(), b"value").get(timeout=20)
    assert sent.offset >= 0
    producer.close()


@pytest.mark.parametrize("listener, mechanism", PYTHON_WAYS)
def test_aiokafka_writes(place: Place, listener: str, mechanism: str | None) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(**python_settings(place, listener, mechanism))
        await producer.start()
        sent = await producer.send_and_wait(f"ai-{listener}-{mechanism}".lower(), b"value")
        assert sent.offset >= 0
        await producer.stop()

    asyncio.run(main())


JAVAS_MODULES = {"PLAIN": MODULE, "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule"}
OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer"


def javas_config(place: Place, java: JavaHost, listener: str, mechanism: str | None) -> dict[str, str]:
    protocol = PROTOCOLS[listener]
    config = {"bootstrap.servers": place.bootstrap(listener), "security.protocol": protocol}
    if "SSL" in protocol:
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": place.authority.pem}
    if listener == "MUTUAL":
        key, chain = parts(place.certificate)
        config |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain}
        config["ssl.keystore.key"] = as_pkcs8(key)
    if mechanism == "OAUTHBEARER":
        config |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{OAUTHBEARER}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{OAUTHBEARER}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": java.token_file.as_uri(),
        }
    elif mechanism is not None:
        module = JAVAS_MODULES[mechanism.partition("-")[0]]
        config["sasl.mechanism"] = mechanism
        config["sasl.jaas.config"] = f'{module} required username="alice" password="{SECRET}";'
    return config


@pytest.mark.parametrize("listener, mechanism", WAYS)
def test_javas_client_writes_and_reads(
    place: Place, java: JavaHost, listener: str, mechanism: str | None
) -> None:
    java.token_file.parent.mkdir(parents=True, exist_ok=True)
    java.token_file.write_text(place.token())
    config = javas_config(place, java, listener, mechanism)
    topic = f"java-{listener}-{mechanism}".lower()
    value = base64.b64encode(b"by java").decode()
    message = {"topic": topic, "partition": 0, "key": None, "value": value, "headers": []}
    sent = java.call({"op": "produce", "config": config, "messages": 3 * [message]})
    assert [result.get("offset") for result in sent["results"]] == [0, 1, 2], sent
    start = {"topic": topic, "partition": 0, "start": 0}
    wanted = {"op": "consume", "config": config, "count": 3, "partitions": [start], "timeout_ms": 20_000}
    assert [record["value"] for record in java.call(wanted)["records"]] == 3 * [value]


def as_pkcs8(key: str) -> str:
    """A private key in the only form that Java reads."""
    private = serialization.load_pem_private_key(key.encode(), password=None)
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


# Not SCRAM: librdkafka before 2.6.1, which Debian's kcat brings, repeats its nonce in the last message. That
# has to be refused (S8), as Kafka does since CVE-2024-56128.
@pytest.mark.parametrize("listener, mechanism", [way for way in WAYS if way[1] in (None, "PLAIN")])
def test_kcat_writes_and_reads(place: Place, kcat: Kcat, listener: str, mechanism: str | None) -> None:
    config = librdkafka(place, listener, mechanism)
    del config["logger"]
    words = [word for name, value in config.items() for word in ("-X", f"{name}={value}")]
    topic = f"kcat-{listener}-{mechanism}".lower()
    written = kcat.run("-P", "-t", topic, *words, stdin=b"by kcat\n")
    assert written.returncode == 0, written.stderr
    read = kcat.run("-C", "-t", topic, "-o", "beginning", "-e", "-q", *words)
    assert read.stdout == b"by kcat\n", read.stderr


def failure_of(config: dict[str, Any]) -> str:
    """What a client is told that cannot log in."""
    told: list[str] = []
    config["error_cb"] = lambda error: told.append(error.str())
    admin = AdminClient(config)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1.5)
    admin.poll(0.2)
    return " ".join(told)


@pytest.mark.parametrize(
    "mechanism, told",
    [
        ("PLAIN", "Authentication failed: Invalid username or password"),
        ("SCRAM-SHA-256", "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("SCRAM-SHA-512", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
    ],
)
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    place: Place, mechanism: str, told: str
) -> None:
    wrong = failure_of(librdkafka(place, "CLOSED", mechanism, **{"sasl.password": "no"}))
    unknown = failure_of(librdkafka(place, "CLOSED", mechanism, **{"sasl.username": "eve"}))
    assert told in wrong
    assert told in unknown


def test_an_unknown_mechanism_is_told_which_there_are(place: Place) -> None:
    told = failure_of(librdkafka(place, "BRIEF", "SCRAM-SHA-256"))
    assert "PLAIN" in told


def test_a_token_for_others_does_not_count(place: Place) -> None:
    def forged(_config: str) -> tuple[str, float]:
        header, claims, signature = place.token().split(".")
        content = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        content["sub"] = "admin"
        other = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        return f"{header}.{other}.{signature}", time.time() + 200

    assert "invalid_token" in failure_of(librdkafka(place, "OPEN", "OAUTHBEARER", oauth_cb=forged))


def test_without_the_client_certificate_that_is_required_nobody_comes_in(place: Place) -> None:
    config = librdkafka(place, "MUTUAL")
    del config["ssl.certificate.location"], config["ssl.key.location"]
    failure_of(config)
    config["ssl.key.location"] = config["ssl.certificate.location"] = str(
        place.authority.issue("c", name="odd", common_name="!")
    )
    failure_of(config)


def test_a_session_goes_on_past_its_end_by_logging_in_again(place: Place) -> None:
    """librdkafka logs in again on the live connection; a client that does not is closed (KIP-368)."""
    producer = Producer(librdkafka(place, "BRIEF", "PLAIN"))
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    def has_logged_in_again() -> bool:
        producer.produce("brief", b"x", on_delivery=delivered)
        assert producer.flush(10) == 0
        page = place.broker.http("/metrics")[1]
        found = re.search(r'{listener="BRIEF",mechanism="PLAIN",result="reauthentication"} (\d+)', page)
        return found is not None and int(found[1]) >= 2

    eventually(has_logged_in_again, 15)
    assert not failed
    with socket.create_connection(("127.0.0.1", place.ports["BRIEF"]), 5) as client:
        for key, body in ((17, b"\0\5PLAIN"), (36, struct.pack(">i", 14) + b"\0alice\0" + SECRET.encode())):
            head = struct.pack(">hhih", key, 1, 1, -1)
            client.sendall(struct.pack(">i", len(head + body)) + head + body)
            assert client.recv(4096)[8:10] == b"\0\0"

        def is_closed() -> bool:
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return client.recv(4096) == b""

        eventually(is_closed, 10)
    eventually(lambda: 'connections_killed_total{listener="BRIEF"} 1.0' in place.broker.http("/metrics")[1])


@pytest.mark.parametrize("listener", ["OPEN", "CLOSED"])
def test_requests_before_the_login_are_not_served(place: Place, listener: str) -> None:
    """Fault S12."""
    with socket.create_connection(("127.0.0.1", place.ports[listener]), 5) as plain:
        client = plain
        if listener == "CLOSED":
            client = place.authority.client().wrap_socket(plain, server_hostname="localhost")
        client.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0))
        with client, contextlib.suppress(ConnectionError):
            assert client.recv(4096) == b""


def test_strangers_on_every_port_are_closed_and_do_no_harm(place: Place) -> None:
    """Faults S4 and S11: a storm of what is no login leaves healthy clients as they are."""
    producer = Producer(librdkafka(place, "CLOSED", "SCRAM-SHA-256", **{"linger.ms": 0}))
    producer.produce("healthy", b"first")
    assert producer.flush(10) == 0
    hello = ssl.MemoryBIO()
    side = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    tls_hello = hello.read()
    rubbish = [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 50, b"\x7f\xff\xff\xff" + bytes(20), tls_hello]
    slowest = 0.0
    for _ in range(3):
        for listener, port in place.ports.items():
            for data in rubbish:
                if data is tls_hello and "SSL" in PROTOCOLS[listener]:
                    continue
                with socket.create_connection(("127.0.0.1", port), 5) as client:
                    client.sendall(data)
                    client.settimeout(5)
                    with contextlib.suppress(ConnectionError):
                        while client.recv(4096):
                            pass
        began = time.monotonic()
        producer.produce("healthy", b"again")
        assert producer.flush(5) == 0
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0
    page = place.broker.http("/metrics")[1]
    assert 'millrace_tls_handshake_failures_total{listener="TLS",reason="plaintext"}' in page
    log = place.broker.output_path.read_text()
    assert "TLS on a plaintext listener" in log or "first bytes of TLS" in log
    assert "plaintext on a listener with TLS" in log
    assert SECRET not in log


def test_new_certificates_are_taken_without_a_restart(place: Place) -> None:
    def serial() -> str:
        with (
            socket.create_connection(("127.0.0.1", place.ports["TLS"]), 5) as plain,
            place.authority.client().wrap_socket(plain, server_hostname="localhost") as client,
        ):
            found = client.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    producer = Producer(librdkafka(place, "TLS"))
    producer.produce("reloaded", b"before")
    assert producer.flush(10) == 0
    before = serial()
    fresh = place.authority.issue(name="fresh")
    admin = AdminClient({"bootstrap.servers": place.bootstrap("PLAINTEXT")})
    resource = ConfigResource(ResourceType.BROKER, "1")
    resource.add_incremental_config(
        ConfigEntry(
            "listener.name.tls.ssl.keystore.location",
            str(fresh),
            incremental_operation=AlterConfigOpType.SET,
        )
    )
    for outcome in admin.incremental_alter_configs([resource]).values():
        outcome.result(timeout=10)
    eventually(lambda: serial() != before, 10)
    producer.produce("reloaded", b"after")
    assert producer.flush(10) == 0
    page = place.broker.http("/metrics")[1]
    assert 'millrace_certificate_reloads_total{listener="TLS",result="success"} 1.0' in page
    assert 'millrace_certificate_expires_in_seconds{listener="TLS"}' in page


def test_secrets_are_described_nowhere(place: Place) -> None:
    admin = AdminClient({"bootstrap.servers": place.bootstrap("PLAINTEXT")})
    (described,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    entries = described.result(timeout=10)
    jaas = entries["listener.name.open.plain.sasl.jaas.config"]
    assert (jaas.value, jaas.is_sensitive) == (None, True)
    assert entries["connections.max.reauth.ms"].value == "0"
    assert SECRET not in repr({name: entry.value for name, entry in entries.items()})
