"""The state topic stays short, and nothing goes that a share partition needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.coordinator.runtime import Shard
from millrace.queues.share_partition.model import Delta, ShareKey
from millrace.queues.state.commands import DeleteState, InitializeState, StateSettings, WriteState
from millrace.queues.state.machine import ShareStateMachine
from millrace.queues.state.pruning import SNAPSHOTS_PER_TURN, Pruning
from tests.unit.broker.handlers.broker import Broker
from tests.unit.queues.state.lab import run


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    made.start()
    made.create_topic("orders", 1)
    made.run(made.share_state.topic.ensure())
    yield made
    made.stop()


class Round:
    """One partition of the state topic, with share partitions of several groups in it."""

    def __init__(self, broker: Broker, *, groups: int) -> None:
        self.broker = broker
        self.settings = StateSettings(rewrite_interval_ms=0)
        self.pruning = Pruning(broker.share_state.runtime, self.settings)
        topic_id = broker.metadata.image.topics["orders"].topic_id
        found = [ShareKey(f"group-{number}", topic_id, 0) for number in range(10 * groups)]
        self.keys = [key for key in found if self.shard_of(key).partition.index == 0][:groups]
        for key in self.keys:
            self.give(key, InitializeState(key, 1, 0))

    def shard_of(self, key: ShareKey) -> Shard:
        shard = self.broker.share_state.shard_of(key)
        assert shard is not None
        return shard

    @property
    def shard(self) -> Shard:
        return self.broker.share_state.runtime.shards[0]

    @property
    def start_offset(self) -> int:
        return self.shard.partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.shard.partition.log.log_end_offset

    def give(self, key: ShareKey, command: object) -> None:
        async def outcome() -> None:
            found = self.broker.share_state.submit(key, command)
            if isinstance(found, asyncio.Future):
                await found

        self.broker.run(outcome())

    def write(self, key: ShareKey, times: int) -> None:
        for number in range(times):
            self.give(key, WriteState(key, 1, 0, Delta(number, 0, (run(number + 1, number + 1),))))

    def look(self) -> None:
        self.broker.run(self.pruning.look_at(0, self.shard))

    def reloaded(self) -> ShareStateMachine:
        async def load() -> ShareStateMachine:
            runtime = self.broker.share_state.runtime
            partition = self.shard.partition
            machine = await runtime._read(partition, partition.leaders_count)
            assert isinstance(machine, ShareStateMachine)
            return machine

        return self.broker.run(load())

    def assert_nothing_is_lost(self) -> None:
        live = self.shard.machine
        assert isinstance(live, ShareStateMachine)
        assert self.reloaded().states == live.states


def test_what_nobody_needs_any_more_is_deleted(broker: Broker) -> None:
    lab = Round(broker, groups=3)
    lab.write(lab.keys[0], 20)
    mark = lab.end_offset
    lab.look()
    assert lab.start_offset == 0
    lab.write(lab.keys[1], 5)
    lab.look()
    assert lab.start_offset == mark
    lab.assert_nothing_is_lost()


def test_share_partitions_that_nobody_uses_are_not_copied_for_nothing(broker: Broker) -> None:
    lab = Round(broker, groups=5)
    lab.write(lab.keys[0], 4)
    lab.look()
    end = lab.end_offset
    lab.look()
    lab.look()
    assert (lab.start_offset, lab.end_offset) == (0, end)


def test_young_snapshots_are_left_alone(broker: Broker) -> None:
    lab = Round(broker, groups=2)
    lab.settings.rewrite_interval_ms = 3_600_000
    lab.write(lab.keys[0], 20)
    lab.look()
    end = lab.end_offset
    lab.look()
    assert (lab.start_offset, lab.end_offset) == (0, end)


def test_snapshots_that_came_by_themselves_let_records_go(broker: Broker) -> None:
    lab = Round(broker, groups=1)
    lab.settings.rewrite_interval_ms = 3_600_000
    lab.look()
    mark = lab.end_offset
    lab.give(lab.keys[0], InitializeState(lab.keys[0], 2, 7))
    end = lab.end_offset
    lab.look()
    assert (lab.start_offset, lab.end_offset) == (mark, end)
    lab.assert_nothing_is_lost()


def test_many_snapshots_are_written_in_turns(broker: Broker) -> None:
    lab = Round(broker, groups=SNAPSHOTS_PER_TURN + 1)
    lab.write(lab.keys[0], 2 * len(lab.keys))
    lab.look()
    mark = lab.end_offset
    lab.look()
    assert lab.start_offset == mark
    assert lab.end_offset == mark + len(lab.keys)
    lab.assert_nothing_is_lost()


def test_when_all_state_is_deleted_nothing_is_kept(broker: Broker) -> None:
    lab = Round(broker, groups=1)
    lab.give(lab.keys[0], DeleteState(lab.keys[0]))
    lab.look()
    lab.look()
    assert lab.start_offset == lab.end_offset
    lab.look()
    assert lab.reloaded().states == {}


def test_a_round_that_leadership_has_ended_deletes_nothing(broker: Broker) -> None:
    lab = Round(broker, groups=1)
    lab.write(lab.keys[0], 10)
    lab.look()
    shard = lab.shard
    shard.end()
    broker.run(lab.pruning.look_at(0, shard))
    assert shard.partition.log.log_start_offset == 0


def test_it_goes_on_by_itself(broker: Broker) -> None:
    lab = Round(broker, groups=1)
    lab.settings.prune_interval_ms = 1
    lab.write(lab.keys[0], 10)

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        running = loop.create_task(lab.pruning.run())
        try:
            async with asyncio.timeout(10):
                while lab.start_offset == 0:
                    await asyncio.sleep(0.001)
        finally:
            running.cancel()

    broker.run(wait())
    lab.assert_nothing_is_lost()
