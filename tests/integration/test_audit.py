"""Who did what, from where, with which result: read back from `__audit` by a plain consumer, and from the
file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.compat.test_produce import confluent_outcome
from tests.conftest import CheckDisks
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
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
