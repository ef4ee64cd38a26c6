"""Leases end by the loop's time unless their holder renews them."""

from __future__ import annotations

import asyncio

import pytest

from millrace.metadata.errors import LeaseExpired
from millrace.metadata.store import LeaseId
from millrace.metadata.store.leases import LeaseTable
from tests.unit.metadata.virtual_time import run_virtually


def test_a_lease_ends_once_and_not_before_its_time() -> None:
    ended: list[LeaseId] = []

    async def body() -> None:
        table = LeaseTable(ended.append)
        lease = table.grant(5_000)
        await asyncio.sleep(4.9)
        table.check(lease)
        await asyncio.sleep(0.2)
        assert ended == [lease]
        with pytest.raises(LeaseExpired):
            table.check(lease)
        with pytest.raises(LeaseExpired):
            table.keep_alive(lease)
        assert not table.end(lease)

    run_virtually(body())
    assert len(ended) == 1


def test_a_lease_that_is_renewed_goes_on_for_its_whole_time() -> None:
    ended: list[LeaseId] = []

    async def body() -> None:
        table = LeaseTable(ended.append)
        lease = table.grant(5_000)
        for _ in range(4):
            await asyncio.sleep(4)
            assert table.keep_alive(lease) == 5_000
        await asyncio.sleep(4.9)
        assert ended == []
        await asyncio.sleep(0.2)
        assert ended == [lease]

    run_virtually(body())


def test_a_lease_that_its_holder_ends_calls_nobody() -> None:
    ended: list[LeaseId] = []

    async def body() -> None:
        table = LeaseTable(ended.append)
        lease, other = table.grant(1_000), table.grant(1_000)
        assert lease != other
        assert table.end(lease)
        table.check(other)
        table.check(None)
        table.close()
        await asyncio.sleep(10)
        with pytest.raises(LeaseExpired):
            table.check(other)

    run_virtually(body())
    assert ended == []
