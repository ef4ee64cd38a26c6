"""Share partitions keep their state wherever its coordinator is, and whatever it goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from millrace.broker.queues.persister import LINE_MAX, StatePersister, StateWriteTimedOut, Written
from millrace.broker.replication.peers import PeerUnreachable
from millrace.coordinator.errors import CoordinatorNotAvailable, NotCoordinator
from millrace.coordinator.runtime import Outcome
from millrace.core.background import Tasks
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId
from millrace.queues.share_partition.model import Delta, ShareKey, StateBatch, StoredState
from millrace.queues.state.commands import DONE, StateSummary, WriteState
from millrace.queues.state.errors import LeaderEpochFenced, StateNotInitialized
from millrace.queues.state.service import STATE_TOPIC
from millrace.replica.partition import Partition
from tests.unit.broker.handlers.broker import Broker
from tests.unit.queues.state.lab import run

ELSEWHERE: Final = NodeId(99)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    made.start()
    made.create_topic("orders", 4)
    yield made
    made.stop()


def key_of(broker: Broker, partition: int = 0) -> ShareKey:
    return ShareKey("workers", broker.metadata.image.topics["orders"].topic_id, partition)


def write(persister: StatePersister, key: ShareKey, *batches: StateBatch, start_offset: int = -1) -> Written:
    delta = Delta(start_offset, 0, batches)
    return persister.write(key, state_epoch=1, leader_epoch=0, delta=delta)


async def outcome_of(written: Written) -> MillraceError | None:
    return await written if isinstance(written, asyncio.Future) else written


def test_the_first_who_needs_it_has_the_topic_created(broker: Broker) -> None:
    key = key_of(broker)

    async def use() -> None:
        assert await broker.persister.summary(key) == StateSummary()
        assert await broker.persister.initialize(key, state_epoch=1, start_offset=5) is None
        assert await broker.persister.read(key, 0) == StoredState(1, 5, 0, ())
        assert await broker.persister.summary(key) == StateSummary(1, 0, 5, 0)

    broker.run(use())
    assert STATE_TOPIC in broker.metadata.image.topics


def test_a_write_here_is_committed_at_once(broker: Broker) -> None:
    key = key_of(broker)

    async def use() -> None:
        await broker.persister.initialize(key, state_epoch=1, start_offset=0)
        assert write(broker.persister, key, run(0, 3), start_offset=4) is None
        assert write(broker.persister, key, run(6, 6)) is None
        assert await broker.persister.read(key, 0) == StoredState(1, 4, 1, (run(6, 6),))

    broker.run(use())


def test_refusals_are_values(broker: Broker) -> None:
    key = key_of(broker)

    async def use() -> None:
        assert isinstance(await broker.persister.read(key, 0), StateNotInitialized)
        assert isinstance(write(broker.persister, key, run(0, 0)), StateNotInitialized)
        await broker.persister.initialize(key, state_epoch=1, start_offset=0)
        await broker.persister.read(key, 5)
        assert isinstance(write(broker.persister, key, run(0, 0)), LeaderEpochFenced)

    broker.run(use())


def test_a_snapshot_is_written_in_line_with_updates(broker: Broker) -> None:
    broker.share_state.settings.updates_per_snapshot = 2
    key = key_of(broker)

    async def use() -> None:
        await broker.persister.initialize(key, state_epoch=1, start_offset=0)
        writes = [write(broker.persister, key, run(offset, offset)) for offset in range(9)]
        assert [await outcome_of(each) for each in writes] == [None] * 9
        stored = await broker.persister.read(key, 0)
        assert stored == StoredState(1, 0, 9, (run(0, 8),))

    broker.run(use())


def test_state_of_a_deleted_topic_counts_as_deleted(broker: Broker) -> None:
    key = key_of(broker)

    async def use() -> None:
        await broker.persister.initialize(key, state_epoch=1, start_offset=0)
        assert await broker.persister.delete(key) is None
        await broker.metadata.delete_topics(["orders"])
        assert await broker.persister.delete(key) is None

    broker.run(use())


@contextmanager
def nothing_is_committed(partition: Partition) -> Iterator[None]:
    """As if too few replicas had what is appended."""
    committed = partition.log.high_watermark
    original = Partition.append

    def append_only(self: Partition, batch: memoryview, now_ms: int) -> object:
        appended = original(self, batch, now_ms)
        if self is partition:
            self.log.high_watermark = committed
        return appended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "append", append_only)
        yield
    partition.log.high_watermark = partition.log.log_end_offset


def test_a_write_that_its_coordinator_lost_is_tried_again_in_its_place(broker: Broker) -> None:
    key = key_of(broker)

    async def use() -> None:
        persister, state = broker.persister, broker.share_state
        await persister.initialize(key, state_epoch=1, start_offset=0)
        shard = state.shard_of(key)
        assert shard is not None
        with nothing_is_committed(shard.partition):
            waits = [write(persister, key, run(offset, offset)) for offset in range(3)]
            assert all(isinstance(each, asyncio.Future) for each in waits)
        state.runtime._shard_failed(shard)
        await asyncio.sleep(0)
        # The newest word on offset 0 must win, though the writes before it are tried again.
        waits.append(write(persister, key, run(0, 0, count=4)))
        assert [await outcome_of(each) for each in waits] == [None] * 4
        stored = await persister.read(key, 0)
        assert isinstance(stored, StoredState)
        assert stored.batches == (run(0, 0, count=4), run(1, 2))

    broker.run(use())


def test_nobody_waits_for_a_commit_for_ever(broker: Broker) -> None:
    broker.share_state.settings.write_timeout_ms = 20
    key = key_of(broker)

    async def use() -> None:
        await broker.persister.initialize(key, state_epoch=1, start_offset=0)
        shard = broker.share_state.shard_of(key)
        assert shard is not None
        with nothing_is_committed(shard.partition):
            assert isinstance(await outcome_of(write(broker.persister, key, run(0, 0))), StateWriteTimedOut)
            assert isinstance(await broker.persister.read(key, 0), StateWriteTimedOut)
        assert await outcome_of(write(broker.persister, key, run(1, 1))) is None

    broker.run(use())


class Elsewhere:
    """A coordinator on another broker, as far as one is asked: it fails as often as it is told to."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.failures: list[MillraceError] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, leader: NodeId, command: object) -> Outcome:
        assert leader == ELSEWHERE
        self.asked.append(command)
        await self.gate.wait()
        return self.failures.pop(0) if self.failures else DONE


@pytest.fixture
def elsewhere(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[StatePersister, Elsewhere]:
    async def build() -> tuple[StatePersister, Elsewhere]:
        await broker.share_state.topic.ensure()
        other = Elsewhere()
        tasks = Tasks()
        persister = StatePersister(
            broker.share_state,
            other,  # type: ignore[arg-type] # stands for RemoteState
            node_id=NodeId(1),
            start_task=tasks.starter("write-share-state"),
        )
        return persister, other

    built = broker.run(build())
    monkeypatch.setattr(type(broker.share_state.topic), "leader_of", lambda *_: ELSEWHERE)
    shards = broker.share_state.runtime.shards
    for index in list(shards):
        shards.pop(index).end()
    return built


PassingError = Callable[[], MillraceError]


@pytest.mark.parametrize(
    "error",
    [
        lambda: NotCoordinator("here"),
        lambda: CoordinatorNotAvailable("nobody"),
        lambda: PeerUnreachable(99, "gone"),
    ],
)
def test_what_passes_is_tried_again(
    broker: Broker, elsewhere: tuple[StatePersister, Elsewhere], error: PassingError
) -> None:
    persister, other = elsewhere
    key = key_of(broker)
    other.failures = [error(), error()]

    async def use() -> None:
        assert await outcome_of(write(persister, key, run(0, 0))) is None

    broker.run(use())
    assert len(other.asked) == 3


def test_what_passes_is_not_tried_for_ever(
    broker: Broker, elsewhere: tuple[StatePersister, Elsewhere]
) -> None:
    broker.share_state.settings.write_timeout_ms = 30
    persister, other = elsewhere
    key = key_of(broker)
    other.failures = [NotCoordinator("here") for _ in range(100)]

    async def use() -> None:
        assert isinstance(await outcome_of(write(persister, key, run(0, 0))), NotCoordinator)
        other.gate.clear()
        assert isinstance(await persister.read(key, 0), StateWriteTimedOut)

    broker.run(use())
    assert len(other.asked) < 10


def test_writes_of_a_share_partition_that_wait_are_joined_in_their_order(
    broker: Broker, elsewhere: tuple[StatePersister, Elsewhere]
) -> None:
    persister, other = elsewhere
    key = key_of(broker)

    async def use() -> None:
        other.gate.clear()
        first = write(persister, key, run(0, 0))
        while not other.asked:
            await asyncio.sleep(0)
        later = [write(persister, key, run(5, 6), start_offset=3), write(persister, key, run(6, 6, count=2))]
        fenced = persister.write(key, state_epoch=2, leader_epoch=0, delta=Delta(-1, 9, ()))
        other.gate.set()
        assert [await outcome_of(each) for each in (first, *later, fenced)] == [None] * 4

    broker.run(use())
    assert other.asked == [
        WriteState(key, 1, 0, Delta(-1, 0, (run(0, 0),))),
        WriteState(key, 1, 0, Delta(3, 0, (run(5, 6), run(6, 6, count=2)))),
        WriteState(key, 2, 0, Delta(-1, 9, ())),
    ]


def test_a_line_has_an_end(broker: Broker, elsewhere: tuple[StatePersister, Elsewhere]) -> None:
    persister, other = elsewhere
    key = key_of(broker)

    async def use() -> None:
        other.gate.clear()
        waits = [write(persister, key) for _ in range(LINE_MAX)]
        assert isinstance(write(persister, key), CoordinatorNotAvailable)
        other.gate.set()
        assert await outcome_of(waits[-1]) is None

    broker.run(use())
