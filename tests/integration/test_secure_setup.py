"""The set-up of docs/security.md, line by line as it stands there, and what it gives: a broker over TLS that
asks for a login and checks permissions, for our commands and for clients of others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from millrace.client.broker_client import BrokerClient
from millrace.client.security import read_security
from millrace.core.properties import parse_properties
from tests.harness.java import JavaHost
from tests.harness.process import free_port

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
BIN: Final = Path(sys.executable).parent
PASSWORD: Final = "correct horse"
START_S: Final = 30.0


def blocks() -> list[list[str]]:
    """The commands of the page's set-up, one list for each terminal."""
    chapter = PAGE.read_text().split("## Set-up by copy and paste")[1].split("\n## ")[0]
    found = re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)
    return [[line.split("  #")[0].strip() for line in block.strip().splitlines()] for block in found[:2]]


class SetUp:
    """A directory in which the page was followed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.secrets = directory / "secrets"
        self.port, self.http_port = free_port(), free_port()
        self.broker: subprocess.Popen[bytes] | None = None
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("MILLRACE_")
        }
        self.environment["PATH"] = f"{BIN}:{os.environ['PATH']}"

    def shell(self, line: str, *, stdin: str = "", code: int = 0) -> str:
        answer = subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = answer.stdout + answer.stderr
        assert answer.returncode == code, (line, said)
        assert "Traceback" not in said
        assert PASSWORD not in said
        return said

    def serve(self, line: str) -> None:
        words = f"exec {line} --set metrics.listener=127.0.0.1:{self.http_port}"
        with (self.directory / "broker.log").open("ab") as log:
            self.broker = subprocess.Popen(
                ["bash", "-c", words], cwd=self.directory, env=self.environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while "ready" not in (self.directory / "broker.log").read_text():
            assert self.broker.poll() is None, (self.directory / "broker.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self) -> None:
        if self.broker is not None:
            self.broker.terminate()
            self.broker.wait(30)

    def as_user(self, user: str, password: str) -> str:
        """The settings of another user, made from those of the first."""
        values = parse_properties((self.secrets / "client.librdkafka.properties").read_text())
        values |= {"sasl.username": user, "sasl.password": password}
        file = self.secrets / f"{user}.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        return f"--command-config secrets/{file.name}"

    def client(self, **more: Any) -> dict[str, Any]:
        return {**parse_properties((self.secrets / "client.librdkafka.properties").read_text()), **more}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, against: str) -> Iterator[SetUp]:
    """The page, followed to its end. Only what asks a person, or names a fixed port, is said otherwise."""
    if against != "millrace":
        pytest.skip("a promise of Millrace's own")
    found = SetUp(tmp_path_factory.mktemp("set-up"))
    first, second = blocks()
    try:
        for line in first:
            if line.startswith("millrace secure init"):
                found.shell(f"{line} --listen 127.0.0.1:{found.port}")
            elif line.startswith("millrace serve"):
                found.serve(line)
            else:
                assert line.startswith("pip install"), line
        for line in second:
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                found.environment[name] = value
            elif line.startswith("millrace user add"):
                found.shell(f"{line} --password-file -", stdin=PASSWORD)
            else:
                found.shell(line)
        yield found
    finally:
        found.end()


def test_the_page_has_made_a_topic_a_user_and_permissions(made: SetUp) -> None:
    assert "orders" in made.shell("millrace topic list")
    assert "alice   SCRAM-SHA-512" in made.shell("millrace user list")
    assert "User:alice may write topic 'orders'" in made.shell(
        "millrace acl explain alice write topic:orders"
    )


def test_a_user_may_do_what_is_allowed_and_nothing_else(made: SetUp) -> None:
    alice = made.as_user("alice", PASSWORD)
    made.shell(f"millrace produce orders {alice}", stdin="hello\n")
    assert "hello" in made.shell(f"millrace consume orders {alice}")
    assert "AUTHORIZATION_FAILED" in made.shell(f"millrace topic create other {alice}", code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" in made.shell(f"millrace user list {alice}", code=1)
    # By our own connections and by librdkafka's, a topic that may not be seen is not there.
    made.shell("millrace topic create hidden")
    assert "hidden" not in made.shell(f"millrace topic list {alice}")


@pytest.mark.parametrize("command", ["topic list", "user list", "log-dirs describe", "reassign generate"])
def test_a_wrong_password_is_told_at_once(made: SetUp, command: str) -> None:
    mallory = made.as_user("mallory", "guess")
    began = time.monotonic()
    said = made.shell(f"millrace {command} {mallory}", code=1)
    assert "SASL_AUTHENTICATION_FAILED" in said
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("command", ["topic list", "user list"])
def test_who_says_nothing_is_told_what_is_missing(made: SetUp, command: str) -> None:
    said = made.shell(
        f"env -u MILLRACE_CLIENT_CONFIG millrace {command} -b 127.0.0.1:{made.port} --timeout 3", code=1
    )
    assert "--command-config" in said


def test_a_broker_of_another_authority_is_not_trusted(made: SetUp) -> None:
    made.shell(f"millrace secure init other --listen 127.0.0.1:{made.port}")
    said = made.shell("millrace topic list --command-config other/client.properties", code=1)
    assert "is not trusted" in said


def test_every_kind_of_command_reaches_the_broker(made: SetUp) -> None:
    made.shell("millrace topic describe orders")
    made.shell("millrace config describe --topic orders --all")
    made.shell("millrace group list")
    made.shell("millrace transaction list")
    made.shell("millrace log-dirs describe")
    made.shell("millrace reassign generate")
    made.shell("millrace role create ops --member alice")
    made.shell("millrace acl add Role:ops describe cluster")
    assert "has the role ops" in made.shell("millrace acl explain alice describe cluster")
    made.shell("millrace tenant create acme --prefix acme. --admin alice --limit partitions.max=3")
    assert "acme.*" in made.shell("millrace tenant list")
    made.shell("millrace quota set --user alice producer_byte_rate=100000000")
    assert "producer_byte_rate" in made.shell("millrace quota list")
    made.shell("millrace token create secrets/job.properties")
    assert "User:admin" in made.shell("millrace token list")
    made.shell("millrace token renew secrets/job.properties")
    made.shell("millrace token expire secrets/job.properties")


def test_a_delegation_token_logs_in(made: SetUp) -> None:
    made.shell("millrace token create secrets/login.properties")
    lines = (made.secrets / "login.properties").read_text().splitlines()
    rest = [
        line
        for line in (made.secrets / "client.properties").read_text().splitlines()
        if not line.startswith("sasl.")
    ]
    file = made.secrets / "with-token.properties"
    file.touch(mode=0o600)
    file.write_text("\n".join([*lines, *rest]) + "\n")
    assert "alice" in made.shell("millrace user list --command-config secrets/with-token.properties")
    # A token is no way to another token.
    said = made.shell("millrace token list --command-config secrets/with-token.properties", code=1)
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in said


def test_clients_of_librdkafka_take_their_file(made: SetUp) -> None:
    made.shell("millrace topic create for-clients")
    producer = Producer(made.client())
    producer.produce("for-clients", b"over TLS")
    assert producer.flush(20) == 0
    consumer = Consumer(made.client(**{"group.id": "g", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["for-clients"])
    try:
        deadline = time.monotonic() + 20
        message = None
        while message is None and time.monotonic() < deadline:
            message = consumer.poll(0.5)
        assert message is not None
        assert message.error() is None
        assert message.value() == b"over TLS"
    finally:
        consumer.close()


def test_clients_with_a_wrong_password_stay_outside(made: SetUp) -> None:
    failures: list[KafkaError] = []
    consumer = Consumer(
        made.client(**{"sasl.password": "guess", "group.id": "g", "error_cb": failures.append})
    )
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=5)
    consumer.poll(0.1)
    consumer.close()
    assert any(failure.code() == KafkaError._AUTHENTICATION for failure in failures)


def test_the_options_of_spark_are_those_of_the_source(made: SetUp) -> None:
    options = json.loads((made.secrets / "client.spark.json").read_text())
    client = BrokerClient(options["kafka.bootstrap.servers"], security=read_security(options))
    try:
        assert "orders" in client.metadata(["orders"])
    finally:
        client.close()


def test_kafkas_own_tools_take_their_file(made: SetUp, java: JavaHost) -> None:
    answer = java.tool(
        "org.apache.kafka.tools.TopicCommand",
        [
            "--bootstrap-server",
            f"127.0.0.1:{made.port}",
            "--command-config",
            str(made.secrets / "client.properties"),
            "--list",
        ],
    )
    assert answer["status"] == 0, answer
    assert "orders" in answer["stdout"]


def test_a_doctor_knows_how_long_the_certificate_counts(made: SetUp) -> None:
    said = made.shell("millrace doctor --config secrets/broker.toml || true")
    assert "certificate of SASL_SSL" in said
    assert re.search(r"counts for 36\d more days, for .*localhost", said)


def test_nobody_is_added_again_after_a_restart(made: SetUp) -> None:
    made.shell("millrace user delete alice")
    made.end()
    (made.directory / "broker.log").unlink()
    made.serve("millrace serve --config secrets/broker.toml")
    users = made.shell("millrace user list")
    assert "admin" in users
    assert "alice" not in users
    log = (made.directory / "broker.log").read_text()
    assert "added the first users" not in log
    for file in ("broker.toml", "client.properties"):
        for secret in re.findall(r'password=\\?"([^"\\]+)', (made.secrets / file).read_text()):
            assert secret not in log


def test_a_certificate_of_a_client_is_a_login_by_itself(tmp_path: Path) -> None:
    """Mutual TLS, by our own connections and by librdkafka's, with a certificate of the same authority."""
    found = SetUp(tmp_path)
    found.shell(f"millrace secure init secrets --listen 127.0.0.1:{found.port}")
    found.shell("millrace secure cert client secrets alice")
    # Who has a certificate needs no password.
    (found.secrets / "mutual.toml").write_text(
        f'"listeners" = "SSL://127.0.0.1:{found.port}"\n'
        f'"log.dirs" = "{found.directory}/data"\n'
        f'"ssl.keystore.location" = "{found.secrets}/broker.pem"\n'
        f'"ssl.truststore.location" = "{found.secrets}/ca.pem"\n'
        '"ssl.client.auth" = "required"\n'
        '"authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"\n'
        '"super.users" = "User:CN=alice"\n'
    )
    (found.directory / "client.properties").write_text(
        f"bootstrap.servers=127.0.0.1:{found.port}\nsecurity.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={found.secrets}/ca.pem\nssl.keystore.type=PEM\n"
        f"ssl.keystore.location={found.secrets}/client-alice.pem\n"
    )
    found.environment["MILLRACE_CLIENT_CONFIG"] = "client.properties"
    try:
        found.serve("millrace serve --config secrets/mutual.toml")
        found.shell("millrace topic create orders")
        found.shell("millrace acl add bob read topic:orders")
        assert "User:bob" in found.shell("millrace acl list")
        # Without the certificate nobody comes in.
        without = [line for line in (found.directory / "client.properties").read_text().splitlines()
                   if "keystore" not in line]  # fmt: skip
        (found.directory / "without.properties").write_text("\n".join(without) + "\n")
        for command in ("topic list", "acl list"):
            found.shell(f"millrace {command} --command-config without.properties --timeout 4", code=1)
        before = (found.secrets / "broker.pem").read_bytes()
        found.shell("millrace secure cert renew secrets --host other.example")
        assert (found.secrets / "broker.pem").read_bytes() != before
        found.shell("millrace topic list")
    finally:
        found.end()
