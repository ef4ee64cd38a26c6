"""Producer ids: every one once, blocks only when they are needed."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.transactions.producer_ids import ProducerIds
from millrace.metadata.errors import MetadataError


class Blocks:
    """Blocks of three ids, given out when the test says so."""

    def __init__(self) -> None:
        self.given = 0
        self.error: MetadataError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def allocate_producer_ids(self) -> range:
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        first = 1000 + 3 * self.given
        self.given += 1
        return range(first, first + 3)


def test_ids_come_in_order_and_a_block_is_fetched_when_the_one_before_is_used_up() -> None:
    async def check() -> None:
        blocks = Blocks()
        ids = ProducerIds(blocks)
        assert blocks.given == 0
        assert [await ids.next() for _ in range(3)] == [1000, 1001, 1002]
        assert blocks.given == 1
        assert await ids.next() == 1003
        assert blocks.given == 2

    asyncio.run(check())


def test_one_block_serves_all_who_wait_for_it() -> None:
    async def check() -> None:
        blocks = Blocks()
        blocks.may_answer.clear()
        ids = ProducerIds(blocks)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(ids.next()) for _ in range(3)]
            await asyncio.sleep(0)
            blocks.may_answer.set()
        assert sorted(task.result() for task in waiting) == [1000, 1001, 1002]
        assert blocks.given == 1

    asyncio.run(check())


def test_nobody_gets_an_id_twice_when_more_wait_than_a_block_has() -> None:
    async def check() -> None:
        blocks = Blocks()
        ids = ProducerIds(blocks)
        assert sorted(await asyncio.gather(*(ids.next() for _ in range(8)))) == list(range(1000, 1008))

    asyncio.run(check())


def test_a_failure_is_told_and_the_next_who_asks_tries_again() -> None:
    async def check() -> None:
        blocks = Blocks()
        ids = ProducerIds(blocks)
        blocks.error = MetadataError("the store is away")
        with pytest.raises(MetadataError, match="away"):
            await ids.next()
        blocks.error = None
        assert await ids.next() == 1000

    asyncio.run(check())
