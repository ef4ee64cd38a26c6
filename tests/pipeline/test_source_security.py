"""The client of the source, the source and the sink at a broker that asks who they are: over TLS, with a
login and with a certificate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.client.broker_client import BrokerClient
from millrace.client.errors import BrokerRefused, ConnectionFailed, LoginFailed, NotTrusted
from millrace.client.security import read_security
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.metadata import MetadataRequest
from tests.harness.certificates import Authority
from tests.harness.millrace import run_millrace
from tests.harness.process import free_port
from tests.harness.secured import (
    STANDARD_AUTHORIZER,
    SecuredMillrace,
    certificate_settings,
    first_users_file,
)
from tests.harness.topics import unique_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "spark-geheim"


class SecuredBroker:
    """Two doors: one for logins, where sessions end every two seconds, and one for certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.process = SecuredMillrace(folder)
        self.tls_port = free_port()
        jaas = f'PlainLoginModule required user_spark="{PASSWORD}";'
        self.process.settings |= {
            "listeners": f"SASL_SSL://127.0.0.1:{self.process.port},SSL://127.0.0.1:{self.tls_port}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:CN=(.*)/$1/",
            "connections.max.reauth.ms": "2000",
            "metadata.bootstrap.credentials.file": str(first_users_file(folder, {"spark": PASSWORD})),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:spark",
            **certificate_settings(self.authority, "broker"),
        }

    def by_login(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": self.process.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": "spark",
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.file),
        }

    def by_certificate(self, name: str = "spark") -> dict[str, str]:
        mine = self.authority.identity(name)
        return {
            "bootstrap.servers": f"127.0.0.1:{self.tls_port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.file),
            "ssl.certificate.location": str(mine.certificate_file),
            "ssl.key.location": str(mine.key_file),
        }

    def create_topic(self, partitions: int = 2) -> str:
        name = unique_name("secured")
        client: Any = AdminClient({**self.by_login()})
        client.create_topics([NewTopic(name, partitions)])[name].result(30)
        return name


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    broker.process.start()
    yield broker
    broker.process.end()


def topics(options: dict[str, str], timeout_ms: int = 20_000) -> list[str]:
    with client_of(options, timeout_ms) as client:
        return list(client.metadata())


def client_of(options: dict[str, str], timeout_ms: int = 20_000) -> BrokerClient:
    return BrokerClient(options["bootstrap.servers"], security=read_security(options), timeout_ms=timeout_ms)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in(secured: SecuredBroker, mechanism: str) -> None:
    name = secured.create_topic()
    assert name in topics(secured.by_login(mechanism))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_once_and_not_told(secured: SecuredBroker, mechanism: str) -> None:
    with pytest.raises(BrokerRefused, match="login at ") as refused:
        topics(secured.by_login(mechanism, "guess"))
    assert "guess" not in str(refused.value)


def test_a_mechanism_that_is_not_offered_is_named(secured: SecuredBroker) -> None:
    options = secured.by_login("OAUTHBEARER") | {"sasl.oauthbearer.token": "a.b.c"}
    with pytest.raises(LoginFailed, match="does not offer OAUTHBEARER; it offers: PLAIN, SCRAM"):
        topics(options)


def test_a_certificate_is_as_good_as_a_login(secured: SecuredBroker) -> None:
    name = secured.create_topic()
    assert name in topics(secured.by_certificate())
    # Known, and without permission: an unauthorised topic looks like an absent one.
    assert name not in topics(secured.by_certificate("somebody"))


def test_whoever_shows_no_certificate_or_trusts_another_authority_gets_nowhere(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    shown = secured.by_certificate()
    bare = {name: value for name, value in shown.items() if "key" not in name and "cert" not in name}
    with pytest.raises(ConnectionFailed):
        topics(bare, timeout_ms=1_000)
    other = Authority(tmp_path / "other")
    with pytest.raises(NotTrusted, match="is not trusted"):
        topics(secured.by_login() | {"ssl.ca.location": str(other.file)})


def test_a_client_outlives_its_session(secured: SecuredBroker) -> None:
    """The broker ends sessions after two seconds; the same connection goes on."""
    with client_of(secured.by_login()) as client:
        client.metadata()
        (connection,) = client._connections.values()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            client.request(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
            time.sleep(0.1)
        assert list(client._connections.values()) == [connection]


def test_spark_writes_with_a_certificate_and_reads_with_a_login(
    spark: SparkSession, secured: SecuredBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """For longer than a session lasts, and exactly once where the stream says so."""
    topic = secured.create_topic()
    frame = spark.range(5_000).selectExpr("cast(id as string) as value")
    frame.write.format("millrace").mode("append").options(
        topic=topic, **{f"kafka.{name}": value for name, value in secured.by_certificate().items()}
    ).save()
    read = (
        spark.read.format("millrace")
        .options(subscribe=topic, **{f"kafka.{name}": value for name, value in secured.by_login().items()})
        .load()
    )
    found = sorted(int(bytes(row.value)) for row in read.select("value").collect())
    assert found == list(range(5_000))
    stream = (
        spark.readStream.format("millrace")
        .options(
            subscribe=topic,
            **{f"kafka.{name}": value for name, value in secured.by_login().items()},
            **{"kafka.sasl.jaas.config": f'M required username="spark" password="{PASSWORD}";'},
        )
        .load()
    )
    stream.explain(True)
    shown = capsys.readouterr().out
    assert "kafka.sasl.jaas.config" in shown
    assert PASSWORD not in shown


def test_a_declared_pipeline_takes_its_password_from_the_environment(
    secured: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands neither in the file nor among the arguments nor in what the command says."""
    source, sink = secured.create_topic(), secured.create_topic()
    options = secured.by_login()
    del options["bootstrap.servers"]
    producer: Any = Producer(secured.by_login())
    for number in range(100):
        producer.produce(source, str(number).encode())
    assert producer.flush(30) == 0
    options["sasl.password"] = "${TOPIC_PASSWORD}"
    lines = "".join(f"      {name}: {value}\n" for name, value in options.items())
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""pipeline: secured
bootstrap.servers: {secured.process.bootstrap}
checkpoint: {tmp_path / "state"}
sources:
  numbers:
    topic: {source}
    format: text
    options:
{lines}sinks:
  copies:
    sql: SELECT value FROM numbers
    topic: {sink}
    format: text
    options:
{lines}"""
    )
    monkeypatch.setenv("TOPIC_PASSWORD", PASSWORD)
    done = run_millrace("pipeline", "run", str(file), "--once", "--master", "local[2]", timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert sorted(read_values(secured, sink, 100)) == list(range(100))


def read_values(secured: SecuredBroker, topic: str, count: int) -> list[int]:
    consumer: Any = Consumer(
        secured.by_login() | {"group.id": unique_name("reader"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[int] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += [int(message.value()) for message in consumer.consume(count, 0.5) if not message.error()]
    consumer.close()
    return found
