"""Events reach a partition that this broker leads, whole, and the topic comes into being by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.auditing.audit_topic import AuditTopic, AuditTopicPlan
from millrace.core.errors import MillraceError
from millrace.security.audit.events import Event
from millrace.security.audit.ocsf import Reporter
from millrace.wire.records import read_records, split_batches
from tests.unit.broker.handlers.broker import NODE_ID, Broker, FixedClock
from tests.unit.security.audit.samples import denied, event


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


def topic_of(broker: Broker) -> AuditTopic:
    return AuditTopic(
        broker.metadata,
        broker.services.partitions,
        AuditTopicPlan(replication_factor=3, retention_ms=604_800_000),
        clock=FixedClock(),
        node_id=NODE_ID,
        reporter=lambda: Reporter("1", "cluster", NODE_ID),
    )


def some(count: int) -> list[Event]:
    return [event(denied(f"t-{number}"), uid=f"run-{number}") for number in range(count)]


def stored(broker: Broker, index: int = 0) -> list[tuple[bytes | None, Any]]:
    partition = broker.services.partitions.find("__audit", index)
    assert partition is not None
    log = partition.log
    data = log.read(0, 10_000_000, log.log_end_offset, True).read()
    return [
        (record.key, json.loads(record.value or b""))
        for batch in split_batches(memoryview(data))
        for record in read_records(batch)
    ]


def test_the_first_event_makes_the_topic_and_each_is_a_record(broker: Broker) -> None:
    topic = topic_of(broker)
    broker.run(topic.write(some(3)))
    made = broker.metadata.image.topics["__audit"]
    assert made.internal
    assert dict(made.configs) == {"cleanup.policy": "delete", "retention.ms": "604800000"}
    found = stored(broker)
    assert [key for key, _ in found] == [b"run-0", b"run-1", b"run-2"]
    assert [event["resources"][0]["name"] for _, event in found] == ["t-0", "t-1", "t-2"]
    broker.run(topic.write(some(1)))
    assert len(stored(broker)) == 4


def test_many_events_are_written_in_batches_that_the_topic_takes(broker: Broker) -> None:
    broker.create_topic("__audit", configs={"max.message.bytes": "4096"})
    broker.run(topic_of(broker).write(some(50)))
    assert len(stored(broker)) == 50


def test_a_broker_without_a_partition_of_its_own_adds_one(broker: Broker) -> None:
    broker.create_topic("__audit")
    partition = broker.services.partitions.find("__audit", 0)
    assert partition is not None
    partition.follow(7, 5)
    image = broker.metadata.image.topics["__audit"]
    topic = topic_of(broker)
    # By right, as far as the metadata knows, the partition is this broker's: it is elected, not replaced.
    assert image.partitions[0].replicas[0] == NODE_ID
    with pytest.raises(MillraceError):
        broker.run(topic.write(some(1)))
    assert len(broker.metadata.image.topics["__audit"].partitions) == 1


def test_without_a_leader_nothing_is_written_and_nothing_is_lost_by_it(broker: Broker) -> None:
    topic = topic_of(broker)
    broker.run(topic.write(some(1)))
    partition = broker.services.partitions.find("__audit", 0)
    assert partition is not None
    epoch = partition.leader_epoch
    partition.follow(-1, epoch)
    with pytest.raises(MillraceError):
        broker.run(topic.write(some(1)))
    partition.lead(NODE_ID, epoch)
    broker.run(topic.write(some(1)))
    assert len(stored(broker)) == 2
