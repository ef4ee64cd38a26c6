"""The image as it is committed and followed: listeners, waiting, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.core.background import Background
from millrace.core.override import override
from millrace.metadata.commands import AllocateProducerIds, Policy, SetClusterId
from millrace.metadata.committing import ATTEMPTS_MAX, CATCH_UP_MS_MAX, CommittedImage
from millrace.metadata.errors import StoreUnavailable, TooManyConflicts
from millrace.metadata.image import Image
from millrace.metadata.store import Put
from millrace.sim.store import MemoryStore
from tests.harness.background import background
from tests.unit.metadata.virtual_time import run_virtually


def nothing(_place: int, _before: Image, _after: Image) -> None:
    """Only whether it was accepted."""


@asynccontextmanager
async def following(store: MemoryStore, tasks: Background | None = None) -> AsyncIterator[CommittedImage]:
    async with background() as own:
        committed = CommittedImage(store, policy=Policy, chance=random.Random(1))
        await committed.begin(own if tasks is None else tasks)
        yield committed
        await committed.close()


def run(body: Coroutine[Any, Any, None]) -> None:
    run_virtually(body)


def test_listeners_hear_of_a_change_before_its_command_returns() -> None:
    async def body() -> None:
        async with following(MemoryStore()) as committed:
            heard: list[tuple[str, str]] = []
            undo = committed.subscribe(lambda old, new: heard.append((old.cluster_id, new.cluster_id)))
            await committed.submit([SetClusterId("c")], nothing, is_local=False)
            assert heard == [("", "c")]
            undo()
            await committed._store.commit(puts=[Put("producer_ids", b'{"next":5}')])
            await committed.wait_for_revision(committed.image.revision + 1)
            assert len(heard) == 1

    run(body())


def test_only_local_commands_wait_for_this_broker() -> None:
    async def body() -> None:
        async with following(MemoryStore()) as committed:
            asked: list[int] = []

            async def wait(revision: int) -> None:
                asked.append(revision)

            committed.applied_by(wait)
            await committed.submit([SetClusterId("c")], nothing, is_local=False)
            assert asked == []
            await committed.submit([AllocateProducerIds(5)], nothing, validate_only=True)
            assert asked == []
            await committed.submit([AllocateProducerIds(5)], nothing)
            assert asked == [committed.image.revision]

    run(body())


def test_a_change_that_does_not_come_back_is_no_success() -> None:
    async def body() -> None:
        async with following(MemoryStore()) as committed:
            started = asyncio.get_running_loop().time()
            with pytest.raises(StoreUnavailable, match="did not come back"):
                await committed.wait_for_revision(committed.image.revision + 1)
            assert asyncio.get_running_loop().time() - started == pytest.approx(CATCH_UP_MS_MAX / 1000)
            assert not committed._waiting

    run(body())


def test_whoever_loses_every_race_is_told_so() -> None:
    class Contended(MemoryStore):
        """Somebody else is always a little faster."""

        attempts = 0

        @override
        async def commit(self, **options: Any) -> int:
            if options.get("compares"):
                self.attempts += 1
                await super().commit(puts=[Put("producer_ids", b'{"next":%d}' % self.attempts)])
            return await super().commit(**options)

    async def body() -> None:
        store = Contended()
        async with following(store) as committed:
            with pytest.raises(TooManyConflicts, match=f"{ATTEMPTS_MAX} attempts"):
                await committed.submit([AllocateProducerIds(5)], nothing)
            assert store.attempts == ATTEMPTS_MAX

    run(body())


def test_a_listener_that_fails_keeps_the_others_from_nothing() -> None:
    async def body() -> None:
        tasks = Background(random.Random(1))
        async with following(MemoryStore(), tasks) as committed:
            heard: list[str] = []

            def fail(_old: Image, _new: Image) -> None:
                raise ValueError("a bug")

            undo = committed.subscribe(fail)
            committed.subscribe(lambda _, new: heard.append(new.cluster_id))
            await committed.submit([SetClusterId("c")], nothing, is_local=False)
            assert heard == ["c"]
            undo()
            await asyncio.sleep(1)
            assert tasks.failures.counts == {"metadata-follow": 1}
            await tasks.end()

    run(body())
