"""Who did what, from where, with which result: read back from `__audit` by a plain consumer, and from the
file."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.compat.test_produce import confluent_outcome
from tests.conftest import CheckDisks
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually, free_port, throughout
from tests.harness.topics import admin_client, create_topic, unique_name

AUDIT_TOPIC: Final = "__audit"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "broker"


@pytest.fixture
def audited(directory: Path, check_disks: CheckDisks) -> Iterator[MillraceProcess]:
    broker = MillraceProcess(
        directory, {"audit.enable": "true", "audit.log.file": str(directory / "audit.log")}
    )
    broker.start()
    yield broker
    broker.end()
    check_disks(broker)


JAAS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORDS: Final = {"root": "root-secret", "alice": "alice-secret"}
ROOT: Final = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "root",
    "sasl.password": PASSWORDS["root"],
}
ALICE: Final = {**ROOT, "sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
GUARDED: Final = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": f"{JAAS} required "
    + " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",
    "audit.enable": "true",
}
"""Root may do everything, alice what a permission says; the tests look from a listener without logins."""


@pytest.fixture
def guarded(directory: Path, check_disks: CheckDisks) -> Iterator[tuple[MillraceProcess, str]]:
    """A broker that asks who comes, and the address where it does."""
    broker = MillraceProcess(directory, GUARDED | {"audit.log.file": str(directory / "audit.log")})
    clients = f"127.0.0.1:{free_port()}"
    broker.settings["listeners"] = f"PLAINTEXT://{broker.bootstrap},CLIENTS://{clients}"
    broker.start()
    yield broker, clients
    broker.end()
    check_disks(broker)


def events(broker: MillraceProcess) -> list[dict[str, Any]]:
    """All that `__audit` holds now."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": unique_name("auditors"),
            "enable.auto.commit": False,
        }
    )
    try:
        partition = TopicPartition(AUDIT_TOPIC, 0, 0)
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=5)
        except KafkaException:
            return []
        consumer.assign([partition])
        found: list[dict[str, Any]] = []
        while len(found) < end:
            for message in consumer.consume(100, timeout=5):
                assert message.error() is None
                value = message.value()
                assert value is not None
                found.append(json.loads(value))
        return found
    finally:
        consumer.close()


def of_request(found: list[dict[str, Any]], request: str) -> list[dict[str, Any]]:
    return [event for event in found if event.get("api", {}).get("operation") == request]


def lines(broker: MillraceProcess) -> list[str]:
    path = broker.directory / "audit.log"
    return path.read_text().splitlines() if path.exists() else []


def test_a_created_topic_is_told_with_who_whence_and_what_came_of_it(audited: MillraceProcess) -> None:
    topic = create_topic(audited.bootstrap, unique_name("told"))
    admin = admin_client(audited.bootstrap)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    eventually(lambda: len(of_request(events(audited), "CreateTopics")) == 2)
    found = events(audited)
    first, second = of_request(found, "CreateTopics")
    assert first["class_uid"] == 6003
    assert first["actor"]["user"]["name"] == "ANONYMOUS"
    assert first["src_endpoint"]["ip"] == "127.0.0.1"
    assert first["resources"] == [{"type": "Topic", "name": topic, "data": {"error": "NONE"}}]
    assert first["status_id"] == 1
    assert second["status_id"] == 2
    assert second["status_detail"] == "TOPIC_ALREADY_EXISTS"
    assert found[0]["class_uid"] == 6002, "the first thing that happened was the start"
    assert found[0]["message"] == "broker 1 has started"

    (line,) = (one for one in lines(audited) if f"[Topic:{topic}=NONE]" in one)
    assert "Principal = User:ANONYMOUS sent request = CreateTopics from host = 127.0.0.1" in line
    assert os.stat(audited.directory / "audit.log").st_mode & 0o077 == 0, "only the operator reads it"


def test_clients_read_the_topic_and_cannot_write_it(audited: MillraceProcess) -> None:
    create_topic(audited.bootstrap, unique_name("told"))
    eventually(lambda: bool(of_request(events(audited), "CreateTopics")))
    assert confluent_outcome(audited.bootstrap, AUDIT_TOPIC, {}, value=b"forged") == "TOPIC_EXCEPTION"


def test_a_stop_is_told_and_a_new_start_goes_on(audited: MillraceProcess) -> None:
    audited.stop()
    assert any("broker 1 stops (millrace.audit)" in line for line in lines(audited))
    audited.start()
    eventually(lambda: len([one for one in events(audited) if one["class_uid"] == 6002]) == 3)
    found = [one for one in events(audited) if one["class_uid"] == 6002]
    assert [one["activity_id"] for one in found] == [3, 4, 3]
    uids = [one["metadata"]["uid"] for one in events(audited)]
    assert len(set(uids)) == len(uids)


def test_a_denied_write_and_a_failed_login_are_told_with_their_reasons(
    guarded: tuple[MillraceProcess, str],
) -> None:
    broker, clients = guarded
    topic = create_topic(broker.bootstrap, unique_name("guarded"))
    # She sees the topic, so that her client sends the records.
    acl = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin = admin_client(broker.bootstrap)
    admin.create_acls([acl])[acl].result(10)
    for _ in range(2):
        outcome = confluent_outcome(clients, topic, {**ALICE, "message.timeout.ms": 5_000}, value=b"x")
        assert outcome == "TOPIC_AUTHORIZATION_FAILED"
    wrong = AdminClient({"bootstrap.servers": clients, **ALICE, "sasl.password": "a wrong one"})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=3)
    assert confluent_outcome(clients, topic, ROOT, value=b"x") == 0

    def is_told() -> bool:
        found = events(broker)
        failed = [one for one in found if one["class_uid"] == 3002 and one["status_id"] == 2]
        return bool(failed) and any(
            one["actor"]["user"]["name"] == "root" for one in of_request(found, "Produce")
        )

    eventually(is_told)
    found = events(broker)
    denied = next(one for one in of_request(found, "Produce") if one["actor"]["user"]["name"] == "alice")
    assert denied["status_id"] == 2
    assert denied["unmapped"]["operation"] == "WRITE"
    assert denied["resources"] == [{"type": "Topic", "name": topic}]
    assert denied["actor"]["authorizations"][0] == {
        "decision": "denied",
        "policy": {"name": "acl", "desc": "DefaultDeny"},
    }
    written = next(one for one in of_request(found, "Produce") if one["actor"]["user"]["name"] == "root")
    assert written["actor"]["authorizations"][0]["policy"]["desc"] == "SuperUser"
    logins = [one for one in found if one["class_uid"] == 3002]
    failed = next(one for one in logins if one["status_id"] == 2)
    assert failed["user"]["name"] == "alice"
    assert failed["auth_protocol"] == "PLAIN"
    assert failed["is_cleartext"]
    assert failed["status_detail"] == "wrong user name or password"
    assert {one["user"]["name"] for one in logins if one["status_id"] == 1} == {"alice", "root"}
    line = next(line for line in lines(broker) if "is Denied operation = WRITE" in line)
    assert f"on resource = Topic:LITERAL:{topic} for request = Produce" in line
    assert line.endswith("based on rule DefaultDeny (kafka.authorizer.logger)")
    created = of_request(found, "CreateAcls")[-1]
    assert created["resources"][0]["name"] == f"User:alice ALLOW READ on Topic:LITERAL:{topic} from *"
    whole = (broker.directory / "audit.log").read_text() + json.dumps(found)
    assert not [secret for secret in (*PASSWORDS.values(), "a wrong one") if secret in whole]


def test_reading_the_audit_needs_the_permission(guarded: tuple[MillraceProcess, str]) -> None:
    broker, clients = guarded
    eventually(lambda: bool(events(broker)))
    alice = AdminClient({"bootstrap.servers": clients, **ALICE})
    error = alice.list_topics(AUDIT_TOPIC, timeout=10).topics[AUDIT_TOPIC].error
    assert error is not None
    assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
    assert AUDIT_TOPIC not in alice.list_topics(timeout=10).topics


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte for the audit's file."""
    path = tmp_path / "small"
    path.mkdir()
    answer = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {answer.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["open", "closed"])
def test_a_full_disk_is_waited_out_openly_or_closed(
    directory: Path, small_disk: Path, failure: str, check_disks: CheckDisks
) -> None:
    """Open: the broker goes on. Closed: it refuses to be administered until the audit can be written."""
    broker = MillraceProcess(
        directory,
        {
            "audit.enable": "true",
            "audit.topic.enable": "false",
            "audit.log.file": str(small_disk / "audit.log"),
            "audit.failure": failure,
        },
    )
    broker.start()
    try:
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65_536))
        before = create_topic(broker.bootstrap, unique_name("before"))
        assert confluent_outcome(broker.bootstrap, before, {}, value=b"x") == 0
        admin = admin_client(broker.bootstrap)

        def outcome() -> str:
            name = unique_name("meanwhile")
            try:
                admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
            except KafkaException as error:
                return str(error.args[0].str())
            return ""

        if failure == "open":
            throughout(lambda: outcome() == "", 12.0, pause_s=1.0)
            assert "millrace_audit_file_failures_total" in broker.http("/metrics")[1]
        else:
            eventually(lambda: "the audit cannot be written (file)" in outcome(), pause_s=1.0)
            assert "millrace_audit_refusing 1.0" in broker.http("/metrics")[1]
        assert confluent_outcome(broker.bootstrap, before, {}, value=b"y") == 1, "who is inside goes on"
        filler.unlink()
        eventually(lambda: outcome() == "", pause_s=0.5)
        path = small_disk / "audit.log"
        eventually(lambda: path.exists() and f"[Topic:{before}=NONE]" in path.read_text())
        assert path.read_text().endswith("\n")
    finally:
        broker.end()
    check_disks(broker)
