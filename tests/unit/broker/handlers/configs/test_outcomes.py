"""The outcome of each part of a request."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.handlers.configs.outcomes import outcomes_of
from millrace.metadata.errors import MetadataError, UnknownTopic


def test_each_part_has_its_own_outcome() -> None:
    async def check() -> None:
        refused = UnknownTopic("orders")

        async def work() -> list[str | MetadataError]:
            return ["done", refused]

        assert await outcomes_of(work(), 2) == ["done", refused]

    asyncio.run(check())


def test_a_failure_of_the_whole_is_the_outcome_of_every_part() -> None:
    async def check() -> None:
        failed = MetadataError("the store is away")

        async def work() -> list[str | MetadataError]:
            raise failed

        assert await outcomes_of(work(), 3) == [failed, failed, failed]

    asyncio.run(check())


def test_what_is_no_error_of_the_metadata_is_not_hidden() -> None:
    async def check() -> None:
        async def work() -> list[str | MetadataError]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await outcomes_of(work(), 1)

    asyncio.run(check())


def test_outcomes_that_do_not_match_the_parts_are_a_bug_that_shows() -> None:
    async def check() -> None:
        async def work() -> list[str | MetadataError]:
            return ["done"]

        with pytest.raises(AssertionError):
            await outcomes_of(work(), 2)

    asyncio.run(check())
