"""Share state on a broker: its topic, the short way of writes, topics that go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.core.errors import MillraceError
from millrace.metadata.commands import CreatePartitions
from millrace.queues.share_partition.model import Delta, ShareKey
from millrace.queues.state.commands import InitializeState, ReadState, WriteState
from millrace.queues.state.errors import StateNotInitialized
from millrace.queues.state.machine import ShareStateMachine
from millrace.queues.state.service import STATE_TOPIC, StateTopic
from tests.unit.broker.handlers.broker import Broker
from tests.unit.queues.state.lab import run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    made.start()
    made.create_topic("orders", 2)
    made.run(made.share_state.topic.ensure())
    yield made
    made.stop()


class Told:
    def __init__(self) -> None:
        self.outcomes: list[MillraceError | None] = []

    def stored(self, error: MillraceError | None) -> None:
        self.outcomes.append(error)


def key_of(broker: Broker, partition: int = 0) -> ShareKey:
    return ShareKey("workers", broker.metadata.image.topics["orders"].topic_id, partition)


def submit(broker: Broker, key: ShareKey, command: object) -> object:
    async def outcome() -> object:
        found = broker.share_state.submit(key, command)
        return await found if isinstance(found, asyncio.Future) else found

    return broker.run(outcome())


@pytest.mark.parametrize("replicas, needed", [(1, "1"), (2, "2"), (3, "2")])
def test_the_topic_is_kept_for_ever_and_is_not_compacted(replicas: int, needed: str) -> None:
    assert StateTopic().configs(replicas) == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": needed,
        "retention.ms": "-1",
        "segment.bytes": "104857600",
    }


def test_a_staged_write_is_the_same_as_one_that_was_decided(broker: Broker) -> None:
    keys = key_of(broker, 0), key_of(broker, 1)
    delta = Delta(3, 2, (run(3, 4), run(9, 9)))
    told = Told()
    for key in keys:
        submit(broker, key, InitializeState(key, 1, 0))
    shard = broker.share_state.shard_of(keys[0])
    assert shard is not None

    async def stage() -> object:
        return broker.share_state.stage_write(shard, WriteState(keys[0], 1, 0, delta), told)

    assert broker.run(stage()) is True
    assert told.outcomes == [None]
    submit(broker, keys[1], WriteState(keys[1], 1, 0, delta))
    states = []
    for key in keys:
        machine = broker.share_state.machine_of(key)
        assert isinstance(machine, ShareStateMachine)
        states.append(machine.states[key])
    assert states[0] == states[1]


def test_a_write_that_is_refused_changes_nothing(broker: Broker) -> None:
    key, told = key_of(broker), Told()
    shard = broker.share_state.shard_of(key)
    assert shard is not None
    end = shard.partition.log.log_end_offset
    refused = broker.share_state.stage_write(shard, WriteState(key, 1, 0, Delta(0, 0, ())), told)
    assert isinstance(refused, StateNotInitialized)
    assert shard.partition.log.log_end_offset == end
    assert told.outcomes == []


def test_a_write_for_which_a_snapshot_is_due_goes_the_general_way(broker: Broker) -> None:
    broker.share_state.settings.updates_per_snapshot = 0
    key, told = key_of(broker), Told()
    submit(broker, key, InitializeState(key, 1, 0))
    shard = broker.share_state.shard_of(key)
    assert shard is not None
    assert broker.share_state.stage_write(shard, WriteState(key, 1, 0, Delta(0, 0, ())), told) is False
    assert told.outcomes == []


def test_the_state_of_a_topic_goes_with_it(broker: Broker) -> None:
    key = key_of(broker)
    submit(broker, key, InitializeState(key, 1, 0))
    machine = broker.share_state.machine_of(key)
    assert isinstance(machine, ShareStateMachine)
    broker.run(broker.metadata.delete_topics(["orders"]))
    assert machine.states == {}
    assert isinstance(submit(broker, key, ReadState(key, 0)), StateNotInitialized)


def test_partitions_that_come_later_are_known(broker: Broker) -> None:
    later = key_of(broker, 2)
    for known in (key_of(broker, 0), later):
        submit(broker, known, InitializeState(known, 1, 0))
    assert isinstance(submit(broker, later, ReadState(later, 0)), StateNotInitialized)
    broker.run(broker.metadata.create_partitions([CreatePartitions(name="orders", count=3)]))
    submit(broker, later, InitializeState(later, 1, 0))
    assert not isinstance(submit(broker, later, ReadState(later, 0)), MillraceError)


def test_the_topic_has_as_many_partitions_as_its_plan_says(broker: Broker) -> None:
    assert len(broker.metadata.image.topics[STATE_TOPIC].partitions) == 2
