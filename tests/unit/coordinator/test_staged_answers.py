"""Records that are written together: in order, before anything rests on them, and all or none."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from millrace.coordinator import runtime
from millrace.coordinator.errors import NotCoordinator
from millrace.coordinator.staged_answers import tell
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.core.turn_batching import TRY_EVERY
from millrace.log.config import LogConfig
from millrace.log.disk.volume import DiskVolume
from millrace.sim.volume import Fault, SimVolume
from millrace.wire.records import read_records, split_batches
from tests.unit.coordinator.test_runtime import PLACE, Get, Later, Put, Shelf, World


class Told:
    """Somebody who waits for staged records, and what it hears."""

    def __init__(self) -> None:
        self.outcomes: list[MillraceError | None] = []

    def stored(self, error: MillraceError | None) -> None:
        self.outcomes.append(error)


def stage(world: World, name: str, value: bytes = b"1") -> Told:
    told = Told()
    shard = world.runtime.shards[0]
    assert shard.takes_records
    world.shelf.values[name] = value
    shard.stage([(name.encode(), value)], len(name) + len(value) + 32, told)
    return told


def collect(world: World) -> None:
    """Have the next ones of this turn wait for each other."""
    for _ in range(TRY_EVERY - 1):
        stage(world, "before")
    assert world.runtime.shards[0].staged_count == 0


def batches(world: World) -> list[list[str]]:
    """The keys of each batch in the log, but those that `collect` wrote."""
    partition = world.partitions.find(*PLACE)
    assert partition is not None
    data = partition.log.read(0, 1_000_000, partition.log.log_end_offset, True).read()
    found = [
        [(record.key or b"").decode() for record in read_records(batch)]
        for batch in split_batches(memoryview(data))
    ]
    return [keys for keys in found if keys != ["before"]]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(SimVolume(random.Random(1)), "/data")


def test_a_lone_command_is_written_and_answered_at_once(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started():
            assert stage(world, "a").outcomes == [None]
            assert stage(world, "b").outcomes == [None]
            assert batches(world) == [["a"], ["b"]]

    world.run(work())
    world.disk.dispose()


def test_commands_of_one_turn_are_one_batch_from_then_on(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started():
            collect(world)
            told = [stage(world, "a"), stage(world, "b")]
            assert [each.outcomes for each in told] == [[], []]
            await asyncio.sleep(0)
            assert [each.outcomes for each in told] == [[None], [None]]
            told = [stage(world, "c"), stage(world, "d")]
            assert [each.outcomes for each in told] == [[], []], "the turn before has shown its worth"
            await asyncio.sleep(0)
            assert stage(world, "e").outcomes == []
            await asyncio.sleep(0)
            assert stage(world, "f").outcomes == [None], "and the last one has not"
            assert batches(world) == [["a", "b"], ["c", "d"], ["e"], ["f"]]

    world.run(work())
    world.disk.dispose()


def test_a_decision_comes_behind_what_was_staged_before_it(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started():
            collect(world)
            told = stage(world, "a")
            assert world.runtime.submit(0, Put("b", b"1")) == "stored"
            assert told.outcomes == [None]
            told = stage(world, "c")
            assert world.runtime.submit(0, Get("c")) == b"1"
            assert told.outcomes == [None], "an answer rests on it"
            await asyncio.sleep(0)
            assert batches(world) == [["a"], ["b"], ["c"]]

    world.run(work())
    world.disk.dispose()


def test_what_a_timer_decides_comes_behind_it_too(world: World) -> None:
    async def work() -> None:
        world.lead()
        async with world.started() as shelf:
            assert await world.ask(Later("late", b"1")) == "soon"
            told = None
            async with asyncio.timeout(5):
                while "late" not in shelf.values:
                    collect(world)
                    told = stage(world, "a")
                    await asyncio.sleep(0)
            assert told is not None
            assert told.outcomes == [None]

    world.run(work())
    world.disk.dispose()


def test_what_fills_a_batch_begins_another(tmp_path: Path) -> None:
    world = World(DiskVolume(), str(tmp_path / "data"), LogConfig(max_message_bytes=300))

    async def work() -> None:
        world.lead()
        async with world.started():
            collect(world)
            told = [stage(world, name, bytes(100)) for name in "abc"]
            assert [each.outcomes for each in told] == [[None], [None], []]
            await asyncio.sleep(0)
            assert [each.outcomes for each in told] == [[None], [None], [None]]
            assert batches(world) == [["a"], ["b"], ["c"]]

    world.run(work())
    world.disk.dispose()


def test_staged_records_are_answered_when_they_are_committed(tmp_path: Path) -> None:
    world = World(DiskVolume(), str(tmp_path / "data"), LogConfig(flush_messages=1))

    async def work() -> None:
        partition = world.lead()
        async with world.started():
            collect(world)
            told = [stage(world, "a"), stage(world, "b")]
            await asyncio.sleep(0)
            read = world.runtime.submit(0, Get("a"))
            assert isinstance(read, asyncio.Future)
            for _ in range(5):
                await asyncio.sleep(0)
            assert [each.outcomes for each in told] == [[], []]
            assert not read.done()
            await partition.log.flush()
            partition.flushed()
            assert await read == b"1"
            await asyncio.sleep(0)
            assert [each.outcomes for each in told] == [[None], [None]]

    world.run(work())
    world.disk.dispose()


def test_a_failed_write_refuses_all_of_them_and_starts_over(world: World) -> None:
    volume = world.volume
    assert isinstance(volume, SimVolume)

    async def work() -> None:
        world.lead()
        async with world.started() as before:
            assert await world.ask(Put("a", b"0")) == "stored"
            collect(world)
            told = [stage(world, "a"), stage(world, "b")]
            volume.faults.append(Fault("write", errno.ENOSPC))
            await asyncio.sleep(0)
            assert [[type(error) for error in each.outcomes] for each in told] == [[NotCoordinator]] * 2
            volume.faults.clear()
            await world.loaded()
            assert world.shelf is not before
            assert (world.shelf.values["a"], world.shelf.values.get("b")) == (b"0", None)

    world.run(work())
    world.disk.dispose()


def test_a_failed_write_is_found_by_the_next_command(world: World) -> None:
    volume = world.volume
    assert isinstance(volume, SimVolume)

    async def work() -> None:
        world.lead()
        async with world.started():
            collect(world)
            told = stage(world, "a")
            volume.faults.append(Fault("write", errno.ENOSPC))
            assert isinstance(world.runtime.submit(0, Get("a")), NotCoordinator)
            assert [type(error) for error in told.outcomes] == [NotCoordinator]
            volume.faults.clear()
            await world.loaded()
            assert await world.ask(Get("a")) == b""

    world.run(work())
    world.disk.dispose()


@pytest.mark.parametrize("is_written", [False, True])
def test_losing_the_partition_refuses_what_is_not_committed(tmp_path: Path, is_written: bool) -> None:
    world = World(DiskVolume(), str(tmp_path / "data"), LogConfig(flush_messages=1))

    async def work() -> None:
        partition = world.lead()
        async with world.started():
            collect(world)
            told = stage(world, "a")
            if is_written:
                await asyncio.sleep(0)
            shard = world.runtime.shards[0]
            world.partitions.remove(PLACE)
            world.runtime.leadership_changed(partition)
            assert told.outcomes == [], "not in the midst of the change"
            await asyncio.sleep(0)
            assert [type(error) for error in told.outcomes] == [NotCoordinator]
            assert shard.is_over
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(told.outcomes) == 1

    world.run(work())
    world.disk.dispose()


def test_a_bug_keeps_nobody_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        world.lead()
        async with world.started() as before:
            collect(world)
            told = stage(world, "a")
            shard = world.runtime.shards[0]

            def fail(*_: object) -> None:
                raise RuntimeError("a bug")

            monkeypatch.setattr(runtime, "build_plain_batch", fail)
            await asyncio.sleep(0)
            assert [type(error) for error in told.outcomes] == [NotCoordinator]
            assert shard.is_over
            await world.loaded()
            assert isinstance(world.shelf, Shelf)
            assert world.shelf is not before

    world.run(work())
    world.disk.dispose()


class FailsToAnswer(Told):
    @override
    def stored(self, error: MillraceError | None) -> None:
        super().stored(error)
        raise RuntimeError("a bug")


def test_one_answer_that_fails_leaves_no_other_unanswered() -> None:
    told = [Told(), FailsToAnswer(), Told()]
    tell(told, None)
    assert [each.outcomes for each in told] == [[None], [None], [None]]
