"""Brokers that store the state of share partitions, here and with each other, while machines fail: whatever
was answered as stored is read by the next leader."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from millrace.broker import app
from millrace.broker.assembly import coordinators
from millrace.broker.assembly.coordinators import Coordinators
from millrace.broker.queues.persister import Persister
from millrace.coordinator.runtime import Shard
from millrace.core.errors import MillraceError
from millrace.queues.share_partition.model import Delta, RecordState, ShareKey, StateBatch, StoredState
from millrace.queues.state.commands import WriteState
from millrace.queues.state.errors import StateNotInitialized
from millrace.queues.state.pruning import Pruning
from millrace.queues.state.service import STATE_TOPIC, ShareState, WriteAnswer
from millrace.sim import faults
from millrace.sim.cluster import Node
from millrace.sim.cluster_scenarios import THREE
from millrace.sim.run import ORDERS, PARTITIONS, Outcome, Run, run_scenario

DONE = RecordState.ACKNOWLEDGED


@dataclass
class Led:
    """One share partition, and what its leaders were told of their writes."""

    key: ShareKey
    next_offset: int = 0
    stored: dict[int, None] = field(default_factory=dict)
    """The offsets whose end was answered as stored."""
    start_offset: int = 0
    """The greatest start that was answered as stored."""
    sent_start: int = 0
    reads_count: int = 0

    def check(self, found: StoredState) -> list[str]:
        """What was stored and is not there."""
        self.reads_count += 1
        problems = []
        if found.start_offset < self.start_offset:
            problems.append(f"{self.key}: start {self.start_offset} was stored, {found.start_offset} is read")
        there: dict[int, None] = {}
        for batch in found.batches:
            there.update(dict.fromkeys(range(batch.first_offset, batch.last_offset + 1)))
        lost = [each for each in self.stored if each >= found.start_offset and each not in there]
        return [*problems, *(f"{self.key}: {offset} was stored and is gone" for offset in lost)]


class Leaders:
    """The brokers as leaders of share partitions: each has some of its own in every run of its process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.persisters: dict[int, Persister] = {}
        self.coordinators: dict[int, Coordinators] = {}
        self.led: dict[int, list[Led]] = {}
        self.problems: list[str] = []
        self.here = self.elsewhere = 0
        self.pruned_up_to = 0
        original = coordinators.start_coordinators

        def remember(ground: Any, *others: Any) -> Coordinators:
            found = original(ground, *others)
            self.persisters[ground.config.now.node_id] = found.persister
            self.coordinators[ground.config.now.node_id] = found
            return found

        patch.setattr(app, "start_coordinators", remember)

    async def play(self, run: Run) -> None:
        loop = run.cluster.loop
        broker = run.nodes[0].broker
        assert broker is not None
        topic_id = self.coordinators[1].groups._metadata.image.topics[ORDERS].topic_id
        for node in run.nodes:
            self.led[node.node_id] = [
                Led(ShareKey(f"group-{node.node_id}", topic_id, number)) for number in PARTITIONS
            ]
        keeping = [loop.create_task(self._keep(run, node)) for node in run.nodes]
        while run.time_left() > 0:
            await run.sleep(2.0, 10.0)
            await run.chance.choice([faults.kill, faults.power_loss, faults.restart])(run)
        for each in keeping:
            await each
        await run.cluster.until(
            lambda: all(node.is_ready for node in run.nodes), deadline_s=120, what="all brokers"
        )
        for node in run.nodes:
            assert node.process is not None
            await loop.start_in(node.process, self._read_all(node.node_id % len(run.nodes) + 1, node))

    async def _keep(self, run: Run, node: Node) -> None:
        """Lead with every process that the machine runs, until the time is over."""
        loop = run.cluster.loop
        while run.time_left() > 0:
            if not node.is_ready or node.process is None:
                await asyncio.sleep(0.1)
                continue
            process, epoch = node.process, node.starts_count
            persister = self.persisters[node.node_id]
            for led in self.led[node.node_id]:
                _ = loop.start_in(process, self._lead(run, led, persister, epoch))
            while node.process is process and node.is_running and run.time_left() > 0:
                await asyncio.sleep(0.1)

    async def _lead(self, run: Run, led: Led, persister: Persister, leader_epoch: int) -> None:
        found = await persister.read(led.key, leader_epoch)
        while not isinstance(found, StoredState):
            if isinstance(found, StateNotInitialized):
                assert not led.stored, "state that was written to is gone"
                await persister.initialize(led.key, state_epoch=1, start_offset=0)
            await asyncio.sleep(0.2)
            found = await persister.read(led.key, leader_epoch)
        self.problems += led.check(found)
        while run.time_left() > 0:
            for _ in range(run.chance.randint(1, 4)):
                offset = led.next_offset
                led.next_offset += 1
                while led.sent_start in led.stored:
                    led.sent_start += 1
                delta = Delta(led.sent_start, 0, (StateBatch(offset, offset, DONE, 1),))
                written = persister.write(led.key, state_epoch=1, leader_epoch=leader_epoch, delta=delta)
                if isinstance(written, asyncio.Future):
                    self.elsewhere += 1
                    written.add_done_callback(partial(self._answered, led, delta))
                else:
                    self.here += 1
                    self._told(led, delta, written)
            await asyncio.sleep(run.chance.uniform(0.001, 0.3))
            self._look_at_logs()

    def _answered(self, led: Led, delta: Delta, written: asyncio.Future[MillraceError | None]) -> None:
        self._told(led, delta, written.result())

    def _told(self, led: Led, delta: Delta, error: MillraceError | None) -> None:
        if error is None:
            led.stored[delta.batches[0].first_offset] = None
            led.start_offset = max(led.start_offset, delta.start_offset)

    def _look_at_logs(self) -> None:
        for found in self.coordinators.values():
            for shard in found.share_state.runtime.shards.values():
                assert shard.partition.topic == STATE_TOPIC
                self.pruned_up_to = max(self.pruned_up_to, shard.partition.log.log_start_offset)

    async def _read_all(self, led_by: int, node: Node) -> None:
        """A broker reads what another one has written."""
        for led in self.led[led_by]:
            persister = self.persisters[node.node_id]
            found = await persister.read(led.key, -1)
            for _ in range(20):
                if isinstance(found, StoredState):
                    break
                await asyncio.sleep(1.0)
                found = await persister.read(led.key, -1)
            if isinstance(found, StoredState):
                self.problems += led.check(found)
            else:
                self.problems.append(f"{led.key} cannot be read: {found}")


def run_leaders(seed: int, patch: pytest.MonkeyPatch) -> tuple[Leaders, Outcome]:
    leaders = Leaders(patch)
    return leaders, run_scenario(seed, leaders.play, THREE, seconds=60.0)


@pytest.mark.parametrize("seed", range(1, 4))
def test_what_was_stored_is_read_by_the_next_leader(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leaders, outcome = run_leaders(seed, monkeypatch)
    assert leaders.problems == []
    assert outcome.violations == []
    all_led = [led for some in leaders.led.values() for led in some]
    assert all(led.stored and led.reads_count >= 2 for led in all_led), "the run shows nothing"
    assert leaders.elsewhere > 100
    assert leaders.pruned_up_to > 0, "and old records were deleted meanwhile"


def test_deleting_snapshots_that_somebody_needs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rewrite_nothing(*_: object) -> bool:
        return True

    monkeypatch.setattr(Pruning, "_rewrite", rewrite_nothing)
    assert any(run_leaders(seed, monkeypatch)[0].problems for seed in range(1, 4))


def test_answers_before_the_commit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ShareState.stage_write

    def answer_at_once(
        state: ShareState, shard: Shard, command: WriteState, answer: WriteAnswer
    ) -> MillraceError | bool:
        staged = original(state, shard, command, answer)
        if staged is True:
            answer.stored(None)
        return staged

    monkeypatch.setattr(ShareState, "stage_write", answer_at_once)
    assert any(run_leaders(seed, monkeypatch)[0].problems for seed in range(1, 9))
