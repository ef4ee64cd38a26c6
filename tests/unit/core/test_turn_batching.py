"""Work of one turn of the loop is done together where turns bring several pieces, and at once where not."""

from __future__ import annotations

import asyncio

import pytest

from millrace.core.turn_batching import TRY_EVERY, TurnBatching


class Writer:
    """Writes pieces at once or at the end of the turn, as it is told."""

    def __init__(self, batching: TurnBatching) -> None:
        self._batching = batching
        self._waiting = 0
        self.writes: list[int] = []

    def write(self) -> None:
        self._waiting += 1
        if not (self._batching.is_worthwhile or self._batching.is_time_to_try()):
            self._write_all()
        elif self._waiting == 1:
            self._batching.at_end_of_turn(asyncio.get_running_loop(), self._write_all)

    def _write_all(self) -> None:
        count, self._waiting = self._waiting, 0
        self._batching.came_together(count)
        self.writes.append(count)


def test_pieces_that_come_alone_are_done_at_once_but_one_in_so_many() -> None:
    async def work() -> None:
        writer = Writer(TurnBatching())
        for number in range(1, 3 * TRY_EVERY + 1):
            writer.write()
            assert len(writer.writes) == (number if number % TRY_EVERY else number - 1)
            await asyncio.sleep(0)
        assert writer.writes == [1] * 3 * TRY_EVERY

    asyncio.run(work())


def test_turns_that_bring_several_are_written_together_until_one_does_not() -> None:
    async def work() -> None:
        writer = Writer(TurnBatching())
        for _ in range(TRY_EVERY - 1):
            writer.write()
        writer.writes.clear()
        for _ in range(3):
            for _ in range(5):
                writer.write()
            await asyncio.sleep(0)
        writer.write()
        assert writer.writes == [5, 5, 5], "the last one waits"
        await asyncio.sleep(0)
        writer.write()
        assert writer.writes == [5, 5, 5, 1, 1]

    asyncio.run(work())


def test_work_that_fails_leaves_nothing_else_undone(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("a bug")

    async def work() -> None:
        batching = TurnBatching()
        loop = asyncio.get_running_loop()
        for each in (lambda: done.append("first"), fail, lambda: done.append("last")):
            batching.at_end_of_turn(loop, each)
        assert done == []
        await asyncio.sleep(0)

    asyncio.run(work())
    assert done == ["first", "last"]
    assert "end of a turn" in caplog.text
