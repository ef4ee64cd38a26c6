"""Messages get into the store: all of them, in the partition of their target, committed when that is told."""

from __future__ import annotations

import pytest

from millrace.broker.internal_appends import NoSuchPartition
from millrace.broker.queues.delayed.store import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    DelayedTopicPlan,
    in_batches,
)
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.log.partition.appending import Appended
from millrace.metadata.topic_names import DELAYED_TOPIC
from millrace.queues.delayed.codec import REPEATED, StoredMessage, decode
from millrace.replica.partition import NotLeader
from millrace.wire.records import read_records
from tests.unit.broker.handlers.broker import NOW_MS
from tests.unit.broker.queues.delayed.world import World


def test_the_first_message_makes_the_topic(world: World) -> None:
    assert world.add(world.message(NOW_MS + 1), world.message(NOW_MS + 2)) is None
    topic = world.broker.metadata.image.topics[DELAYED_TOPIC]
    assert topic.internal
    assert topic.configs["cleanup.policy"] == "delete"
    assert topic.configs["retention.ms"] == "-1"
    assert world.partition.log.high_watermark == 2


def test_a_second_attempt_says_that_it_is_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[bytes] = []

    async def append(_topic: str, _partition: int, batch: bytes, **_more: object) -> Appended | MillraceError:
        batches.append(batch)
        if len(batches) == 1:
            return NotLeader(TopicPartition(DELAYED_TOPIC, 0), leader_id=-1)
        return Appended(0, 0, -1, False)

    monkeypatch.setattr(world.appends, "append", append)
    assert world.add(world.message(NOW_MS)) is None
    flags = []
    for batch in batches:
        (record,) = read_records(batch)
        found = decode(record.key, record.value)
        assert isinstance(found, StoredMessage)
        flags.append(found.flags)
    assert flags == [0, REPEATED]


def test_what_cannot_be_stored_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = NoSuchPartition(TopicPartition(DELAYED_TOPIC, 0))

    async def append(*_more: object, **_named: object) -> MillraceError:
        return gone

    monkeypatch.setattr(world.appends, "append", append)
    assert world.add(world.message(NOW_MS)) is gone


def test_batches_are_small(world: World) -> None:
    small = [world.message(NOW_MS) for _ in range(BATCH_RECORDS_MAX + 1)]
    assert [len(batch) for batch in in_batches(small)] == [BATCH_RECORDS_MAX, 1]
    large = [world.message(NOW_MS, value=bytes(BATCH_BYTES_MAX)) for _ in range(2)]
    assert [len(batch) for batch in in_batches(large)] == [1, 1]


def test_a_small_cluster_asks_for_no_more_replicas_than_it_has() -> None:
    assert DelayedTopicPlan().configs(1)["min.insync.replicas"] == "1"
    assert DelayedTopicPlan().configs(3)["min.insync.replicas"] == "2"
