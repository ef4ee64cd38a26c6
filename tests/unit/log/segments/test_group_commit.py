"""Group commit by itself: who is told after which round, and what a failed round means."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.log.disk.volume import FileHandle
from millrace.log.errors import DiskFailed, LogClosed, StorageError, TooManyOpenFiles
from millrace.log.segments.group_commit import GroupCommit, ToSync, sync_all
from millrace.sim.volume import SimVolume
from tests.unit.log.support import AtOnce

PATH = "/d/orders-0/file"


class FakeLog:
    """A log with an end, which notes what it is told."""

    path = "/d/orders-0"

    def __init__(self, volume: SimVolume) -> None:
        volume.make_directory(self.path)
        self.file = volume.file(PATH, create=True)
        self.file.write_at(0, b"content")
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.told: list[object] = []
        self.refusal: StorageError | None = None
        self.open_files: Callable[[], list[FileHandle]] = lambda: [self.file.handle()]

    def begin_sync(self) -> ToSync:
        if self.refusal is not None:
            raise self.refusal
        return ToSync(self.open_files, [], [self.path], [])

    def synced(self, end_offset: int, generation: int) -> None:
        self.told.append((end_offset, generation))
        self.flushed_offset = end_offset

    def sync_not_begun(self, _to_sync: ToSync) -> None:
        self.told.append("not begun")

    def sync_failed(self, error: StorageError, _to_sync: ToSync) -> None:
        self.told.append(error)


class Bench:
    def __init__(self) -> None:
        self.volume = SimVolume(random.Random(1))
        self.log = FakeLog(self.volume)
        self.commits = GroupCommit(self.log, self.volume)

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def with_threads() -> None:
            asyncio.get_running_loop().set_default_executor(AtOnce(1))
            async with asyncio.timeout(5):
                await work()

        asyncio.run(with_threads())

    def wait(self, end_offset: int) -> asyncio.Future[None]:
        """Something is appended up to there, and somebody waits for it."""
        self.log.log_end_offset = max(self.log.log_end_offset, end_offset)
        return self.commits.wait(end_offset)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_was_waited_for_survives_a_power_loss(bench: Bench) -> None:
    async def work() -> None:
        await bench.wait(3)

    bench.run(work)
    bench.volume.crash()
    assert bench.volume.read_bytes(PATH) == b"content"
    assert bench.log.told == [(3, 0)]


def test_who_comes_during_a_round_waits_for_the_next_one_and_all_share_it(bench: Bench) -> None:
    async def work() -> None:
        first = bench.wait(1)
        others = [bench.wait(end) for end in (2, 3, 4)]
        await first
        assert not any(other.done() for other in others)
        await asyncio.gather(*others)

    bench.run(work)
    assert bench.log.told == [(1, 0), (4, 0)]
    assert bench.commits.last_round_number == 2


def test_who_waits_for_a_round_is_not_answered_by_an_earlier_one(bench: Bench) -> None:
    async def work() -> None:
        first = bench.wait(1)
        small_file = bench.commits.wait(0, round_number=bench.commits.next_round_number)
        await first
        assert not small_file.done()
        await small_file

    bench.run(work)
    assert bench.commits.last_round_number == 2


def test_a_truncation_during_a_round_leaves_nobody_waiting_for_what_is_gone(bench: Bench) -> None:
    async def work() -> None:
        waiting = bench.wait(10)
        bench.log.log_end_offset = 4
        bench.commits.generation += 1
        await waiting

    bench.run(work)
    # The round tells of the log as it was when it began.
    assert bench.log.told == [(10, 0)]


def test_a_failed_sync_is_told_to_the_log_and_to_all_who_wait(bench: Bench) -> None:
    async def work() -> None:
        bench.volume.fail("sync", errno.EIO)
        outcomes = await asyncio.gather(bench.wait(1), bench.wait(2), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DiskFailed, DiskFailed]
        assert [type(each) for each in bench.log.told] == [DiskFailed]

    bench.run(work)
    assert bench.log.flushed_offset == 0


def test_a_bug_in_a_sync_counts_as_a_failed_disk_and_nothing_as_stored(bench: Bench) -> None:
    class Broken:
        path = PATH

        def sync(self) -> None:
            raise ZeroDivisionError

    async def work() -> None:
        bench.log.open_files = lambda: [Broken()]  # type: ignore[list-item]
        with pytest.raises(DiskFailed, match="ZeroDivisionError"):
            await bench.wait(1)

    bench.run(work)
    assert bench.log.flushed_offset == 0


def test_a_round_that_could_not_begin_is_told_and_nothing_is_known_to_be_broken(bench: Bench) -> None:
    def refuse() -> list[FileHandle]:
        raise TooManyOpenFiles("open", PATH, "too many")

    async def work() -> None:
        bench.log.open_files = refuse
        with pytest.raises(TooManyOpenFiles):
            await bench.wait(1)
        assert bench.log.told == ["not begun"]
        bench.log.open_files = lambda: [bench.log.file.handle()]
        await bench.wait(2)

    bench.run(work)
    assert bench.log.flushed_offset == 2


def test_a_log_that_begins_no_round_refuses_those_who_wait(bench: Bench) -> None:
    async def work() -> None:
        bench.log.refusal = DiskFailed("sync", PATH, "fenced")
        with pytest.raises(DiskFailed, match="fenced"):
            await bench.wait(1)
        assert bench.commits.join() is None

    bench.run(work)
    assert not bench.commits.is_running


def test_while_rounds_are_held_nobody_is_answered_and_the_release_answers_all(bench: Bench) -> None:
    async def work() -> None:
        first = bench.wait(1)
        await bench.commits.hold()
        assert not bench.commits.is_running
        assert bench.log.told == [(1, 0)]
        held = bench.wait(2)
        assert bench.commits.join() is None
        for _ in range(5):
            await asyncio.sleep(0)
        assert first.done()
        assert not held.done()
        bench.commits.release()
        await held

    bench.run(work)


def test_a_round_that_somebody_else_carries_out_answers_as_any_other(bench: Bench) -> None:
    async def work() -> None:
        bench.log.log_end_offset = 5
        round_ = bench.commits.join()
        assert round_ is not None
        assert bench.commits.join() is None, "one at a time"
        waiting = bench.commits.wait(5)
        bench.commits.end(round_, None)
        await waiting

    bench.run(work)
    assert bench.log.told == [(5, 0)]


def test_a_round_that_was_broken_off_tells_that_nothing_is_known(bench: Bench) -> None:
    async def work() -> None:
        round_ = bench.commits.join()
        assert round_ is not None
        waiting = bench.wait(1)
        bench.commits.end(round_, LogClosed("the broker stops"))
        with pytest.raises(LogClosed):
            await waiting

    bench.run(work)
    assert bench.log.told == ["not begun"]


def test_whoever_waits_is_handed_over_to_the_log_that_takes_the_place(bench: Bench) -> None:
    heir = Bench()

    async def work() -> None:
        await bench.commits.hold()
        offset = bench.wait(2)
        small_file = bench.commits.wait(0, round_number=7)
        heir.log.log_end_offset = 2
        bench.commits.hand_over(heir.commits)
        await asyncio.gather(offset, small_file)

    bench.run(work)
    assert (bench.log.told, heir.log.told) == ([], [(2, 0)])


def test_names_of_files_are_synced_behind_their_content(bench: Bench) -> None:
    bench.volume.fail("sync", errno.EIO, path_contains="file")
    with pytest.raises(StorageError):
        sync_all(bench.volume, [bench.log.file.handle()], [bench.log.path], ())
    bench.volume.crash()
    assert not bench.volume.exists(PATH)
