"""The shell around rules: it loads, stores, answers after the commit, and starts over when a write fails."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millrace.coordinator.decision import (
    Applied,
    Decision,
    Record,
    Reply,
    SetTimer,
    TransactionalRecord,
    TransactionEnded,
    Unstored,
)
from millrace.coordinator.errors import CoordinatorLoading, NotCoordinator, RecordsTooLarge
from millrace.coordinator.runtime import Runtime
from millrace.core.ids import TopicPartition
from millrace.log.config import LogConfig
from millrace.log.disk.volume import DiskVolume, Volume
from millrace.replica.partition import Partition, TopicStats
from millrace.replica.partitions import Partitions
from millrace.sim.volume import Fault, SimVolume
from millrace.wire.records import ControlMarker, ControlType, build_batch, build_marker
from millrace.wire.records import Record as StoredRecord
from tests.harness.background import background
from tests.unit.log.support import TOPIC_ID, Disk

TOPIC = "__counters"
PLACE = TopicPartition(TOPIC, 0)


class Put(NamedTuple):
    name: str
    value: bytes | None
    copies: int = 1
    is_atomic: bool = True


class Get(NamedTuple):
    name: str


class Park(NamedTuple):
    name: str


class Release(NamedTuple):
    name: str
    value: bytes


class Remember(NamedTuple):
    name: str
    records: int = 0


class Later(NamedTuple):
    name: str
    value: bytes


class Shelf:
    """Rules as simple as can be: names and values, and people who wait for one."""

    has_soft_state = True

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.parked: dict[str, int] = {}
        self.pending: dict[int, list[Record]] = {}
        self.remembered: list[object] = []
        self.is_resumed = False

    def decide(self, command: object, now_ms: int, token: int) -> Decision[object]:
        match command:
            case Put(name, value, copies, is_atomic):
                names = [name] if copies == 1 else [f"{name}{number}" for number in range(copies)]
                records = tuple(Record(each, value) for each in names)
                return Decision(records=records, response="stored", is_atomic=is_atomic)
            case Get(name):
                return Decision(response=self.values.get(name, b""))
            case Park(name):
                self.parked[name] = token
                return Decision()
            case Release(name, value):
                return Decision(
                    records=(Record(name, value),),
                    replies=(Reply(self.parked[name], value),),
                    response="done",
                )
            case Remember(name, records):
                stored = tuple(Record(name, bytes(10_000)) for _ in range(records))
                return Decision(records=stored, unstored=(Unstored(name),), response="remembered")
            case Later(name, value):
                return Decision(timers=(SetTimer(name, 1, Put(name, value)),), response="soon")
            case _:
                raise AssertionError(command)

    def apply(self, record: Applied) -> None:
        match record:
            case TransactionalRecord(producer_id, each):
                self.pending.setdefault(producer_id, []).append(each)
                return
            case TransactionEnded(producer_id, is_commit):
                for each in self.pending.pop(producer_id, []) if is_commit else ():
                    self.apply(each)
                return
            case Unstored(fact):
                self.remembered.append(fact)
                return
            case Record():
                pass
        assert isinstance(record.key, str)
        if record.value is None:
            self.values.pop(record.key, None)
        else:
            assert isinstance(record.value, bytes)
            self.values[record.key] = record.value

    def resume(self, now_ms: int) -> Decision[object]:
        self.is_resumed = True
        return Decision()


class ShelfCodec:
    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        assert isinstance(record.key, str)
        assert record.value is None or isinstance(record.value, bytes)
        return record.key.encode(), record.value

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        return None if key == b"unknown" else Record(key.decode(), value)


class World:
    def __init__(self, volume: Volume, path: str, config: LogConfig | None = None) -> None:
        self.volume = volume
        self.disk = Disk(volume, path, config)
        self.partitions = Partitions()
        self.runtime = Runtime(
            TOPIC,
            self.partitions,
            clock=self.disk.clock,
            codec=ShelfCodec(),
            new_machine=lambda _: Shelf(),
        )
        self.flushes: list[Partition] = []

    def lead(self) -> Partition:
        partition = Partition(PLACE, TOPIC_ID, self.disk.log(PLACE), TopicStats(), self.flushes.append)
        self.partitions.add(partition)
        partition.lead(1, 0)
        return partition

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Shelf]:
        async with background() as tasks:
            self.runtime.start(tasks)
            await self.loaded()
            yield self.shelf
            self.runtime.stop()

    async def loaded(self) -> None:
        async with asyncio.timeout(5):
            while self.runtime.is_loading or 0 not in self.runtime.shards:
                await asyncio.sleep(0)

    @property
    def shelf(self) -> Shelf:
        machine = self.runtime.shards[0].machine
        assert isinstance(machine, Shelf)
        return machine

    async def ask(self, command: object) -> object:
        outcome = self.runtime.submit(0, command)
        if isinstance(outcome, asyncio.Future):
            async with asyncio.timeout(5):
                return await outcome
        return outcome

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.disk.run(work)

    def restarted(self, volume: Volume) -> World:
        return World(volume, self.disk.path, self.disk.config)


@pytest.fixture(params=["disk", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "disk":
        made = World(DiskVolume(), str(tmp_path / "data"))
    else:
        made = World(SimVolume(random.Random(1)), "/data")
    yield made
    made.disk.dispose()


def test_what_is_stored_is_there_after_a_restart(world: World) -> None:
    async def first() -> None:
        world.lead()
        async with world.started() as shelf:
            assert await world.ask(Put("a", b"1")) == "stored"
            assert await world.ask(Put("a", b"2")) == "stored"
            assert await world.ask(Put("b", b"3")) == "stored"
            assert await world.ask(Put("b", None)) == "stored"
            assert await world.ask(Get("a")) == b"2"
            assert shelf.is_resumed

    world.run(first())
    world.disk.abandon()
    again = world.restarted(world.volume)

    async def second() -> None:
        again.lead()
        async with again.started() as shelf:
            assert shelf.values == {"a": b"2"}
            assert shelf.is_resumed

    again.run(second())
    again.disk.dispose()


def test_an_answer_that_needs_no_record_is_there_at_once(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started():
            assert world.runtime.submit(0, Get("a")) == b""

    world.run(work())


def test_a_decision_is_a_batch_of_its_own_and_answered_at_once_when_it_is_committed(world: World) -> None:
    async def work() -> None:
        partition = world.lead()
        async with world.started():
            assert world.runtime.submit(0, Put("a", b"x", 3)) == "stored"
            assert world.runtime.submit(0, Put("b", b"x")) == "stored"
        first = partition.log.read(0, 1, 4, True)
        assert 0 < first.size_bytes < partition.log.size_bytes
        assert partition.log.log_end_offset == 4

    world.run(work())


def test_nobody_is_answered_before_the_records_before_are_committed(tmp_path: Path) -> None:
    # With flush.messages=1 an append is committed when it is on disk.
    world = World(DiskVolume(), str(tmp_path / "data"), LogConfig(flush_messages=1))

    async def work() -> None:
        partition = world.lead()
        async with world.started():
            stored = world.runtime.submit(0, Put("a", b"1"))
            read = world.runtime.submit(0, Get("a"))
            assert isinstance(stored, asyncio.Future)
            assert isinstance(read, asyncio.Future), "it would tell of what may still be lost"
            for _ in range(5):
                await asyncio.sleep(0)
            assert not stored.done()
            assert not read.done()
            await partition.log.flush()
            partition.flushed()
            assert (stored.result(), read.result()) == ("stored", b"1")
            assert world.runtime.submit(0, Get("a")) == b"1"

    world.run(work())
    world.disk.dispose()


def test_a_parked_request_is_answered_by_a_later_decision(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started():
            parked = world.runtime.submit(0, Park("a"))
            assert isinstance(parked, asyncio.Future)
            assert await world.ask(Release("a", b"here")) == "done"
            assert await parked == b"here"
            assert world.runtime.shards[0].parked_count == 0

    world.run(work())


def test_timers_bring_commands_of_their_own(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started() as shelf:
            assert await world.ask(Later("a", b"1")) == "soon"
            async with asyncio.timeout(5):
                while "a" not in shelf.values:
                    await asyncio.sleep(0.001)

    world.run(work())


def test_a_failed_write_starts_over_from_what_is_stored() -> None:
    volume = SimVolume(random.Random(1))
    world = World(volume, "/data")

    async def work() -> None:
        world.lead()
        async with world.started() as before:
            await world.ask(Put("a", b"1"))
            parked = world.runtime.submit(0, Park("b"))
            assert isinstance(parked, asyncio.Future)
            volume.faults.append(Fault("write", errno.ENOSPC))
            assert isinstance(world.runtime.submit(0, Put("a", b"2")), NotCoordinator)
            assert before.values["a"] == b"2", "applied, and not stored"
            assert isinstance(await parked, NotCoordinator)
            volume.faults.clear()
            await world.loaded()
            assert world.shelf is not before
            assert await world.ask(Get("a")) == b"1"
            assert await world.ask(Put("a", b"3")) == "stored"

    world.run(work())
    world.disk.dispose()


def test_losing_the_partition_ends_the_shard(world: World) -> None:
    async def work() -> None:
        partition = world.lead()
        async with world.started():
            parked = world.runtime.submit(0, Park("a"))
            assert isinstance(parked, asyncio.Future)
            world.partitions.remove(PLACE)
            world.runtime.leadership_changed(partition)
            assert isinstance(await parked, NotCoordinator)
            assert isinstance(world.runtime.submit(0, Get("a")), NotCoordinator)
            world.partitions.add(partition)
            partition.lead(1, 0)
            world.runtime.leadership_changed(partition)
            await world.loaded()

    world.run(work())


def test_a_shard_that_is_being_loaded_says_so(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with background() as tasks:
            assert isinstance(world.runtime.submit(0, Get("a")), NotCoordinator)
            world.runtime.start(tasks)
            assert isinstance(world.runtime.submit(0, Get("a")), CoordinatorLoading)
            await world.loaded()
            assert world.runtime.submit(0, Get("a")) == b""
            world.runtime.stop()

    world.run(work())


def test_a_decision_that_fits_into_no_batch_changes_nothing(tmp_path: Path) -> None:
    world = World(DiskVolume(), str(tmp_path / "data"), LogConfig(max_message_bytes=1_000))

    async def work() -> None:
        partition = world.lead()
        async with world.started() as shelf:
            assert isinstance(await world.ask(Put("a", bytes(2_000))), RecordsTooLarge)
            assert isinstance(await world.ask(Put("a", bytes(90), 20)), RecordsTooLarge)
            assert shelf.values == {}
            assert await world.ask(Put("a", bytes(90), 20, is_atomic=False)) == "stored"
            assert len(shelf.values) == 20
        assert partition.log.log_end_offset == 20

    world.run(work())
    world.disk.dispose()


def test_what_is_not_stored_goes_with_the_decision_and_ends_with_the_machine(tmp_path: Path) -> None:
    world = World(DiskVolume(), str(tmp_path / "data"), LogConfig(max_message_bytes=15_000))

    async def work() -> None:
        partition = world.lead()
        async with world.started() as shelf:
            assert await world.ask(Remember("alone")) == "remembered"
            assert await world.ask(Remember("with a record", 1)) == "remembered"
            assert isinstance(await world.ask(Remember("refused", 2)), RecordsTooLarge)
            assert shelf.remembered == ["alone", "with a record"]
        assert partition.log.log_end_offset == 1

    world.run(work())
    world.disk.abandon()
    again = world.restarted(world.volume)

    async def after() -> None:
        again.lead()
        async with again.started() as shelf:
            assert (list(shelf.values), shelf.remembered) == (["with a record"], [])

    again.run(after())
    again.disk.dispose()
    world.disk.dispose()


def test_transactions_count_from_their_commit_on_and_odd_records_are_skipped(world: World) -> None:
    async def work() -> None:
        partition = world.lead()

        def append(name: str, producer_id: int) -> None:
            is_open = producer_id >= 0
            batch = build_batch(
                [StoredRecord(partition.log.log_end_offset, 1, name.encode(), b"x")],
                leader_epoch=0,
                producer_id=producer_id,
                producer_epoch=0 if is_open else -1,
                base_sequence=0 if is_open else -1,
                transactional=is_open,
            )
            partition.log.append_replicated(memoryview(batch))

        def end(producer_id: int, kind: int) -> None:
            marker = build_marker(
                ControlMarker(kind, 0),
                offset=partition.log.log_end_offset,
                timestamp=1,
                producer_id=producer_id,
                producer_epoch=0,
                leader_epoch=0,
            )
            partition.log.append_replicated(memoryview(marker))

        append("committed", 1)
        append("aborted", 2)
        append("open", 3)
        append("plain", -1)
        append("unknown", -1)
        end(1, ControlType.COMMIT)
        end(2, ControlType.ABORT)
        partition.log.high_watermark = partition.log.log_end_offset
        async with world.started() as shelf:
            assert list(shelf.values) == ["plain", "committed"]

    world.run(work())


def test_a_write_that_fails_by_a_bug_leaves_no_state_behind_that_was_not_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live state and the one that is read back must be the same, whatever went wrong."""

    async def work() -> None:
        partition = world.lead()
        async with world.started():
            assert await world.ask(Put("a", b"1")) == "stored"

            def fail(*_: object) -> None:
                raise ValueError("a bug")

            with monkeypatch.context() as broken:
                broken.setattr(Partition, "append", fail)
                assert isinstance(await world.ask(Put("a", b"2")), NotCoordinator)
            await world.loaded()
            assert world.shelf.values == {"a": b"1"}
            assert partition.log.log_end_offset == 1

    world.run(work())
