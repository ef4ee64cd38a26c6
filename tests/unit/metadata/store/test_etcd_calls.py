"""Which member of an etcd cluster is asked: when one fails the next, however many calls failed with it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from typing_extensions import override

from millrace.metadata.errors import StoreUnavailable
from millrace.metadata.store.etcd_calls import EtcdCalls, EtcdSettings

DEAD, ALIVE = "http://dead:2379", "http://alive:2379"


class Stream:
    """Of a member that is gone: it ends as soon as it is read."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    async def write(self, _request: object) -> None:
        """Into nowhere."""

    async def read(self) -> object:
        await asyncio.sleep(0.001)
        if self._fails:
            raise unavailable()
        return grpc.aio.EOF

    def cancel(self) -> None:
        """There is nothing left to end."""


class FakeCalls(EtcdCalls):
    """Instead of a channel, the member's name."""

    @override
    def _connect(self, endpoint: str) -> Any:
        return endpoint


def unavailable() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "gone")


def ask_of(member: str) -> Any:
    async def call(_request: object, **_options: object) -> str:
        # All calls are under way before the first one fails.
        await asyncio.sleep(0.001)
        if member == DEAD:
            raise unavailable()
        return member

    return call


def stream_of(member: str) -> Any:
    return lambda **_options: Stream(fails=member == DEAD)


@pytest.fixture
def calls() -> FakeCalls:
    return FakeCalls(EtcdSettings(endpoints=(DEAD, ALIVE)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_that_fail_together_move_on_by_one_member(calls: FakeCalls, count: int) -> None:
    """With an even number of them, everybody was back at the member that had failed."""

    async def scenario() -> None:
        asked = [calls.ask(ask_of, None, is_repeatable=False) for _ in range(count)]
        streamed = [calls.exchange(stream_of, None) for _ in range(count - 1)]
        for outcome in await asyncio.gather(*asked, *streamed, return_exceptions=True):
            assert isinstance(outcome, StoreUnavailable)
            assert DEAD in str(outcome), "the member that failed is the one that is named"
        assert await calls.ask(ask_of, None, is_repeatable=False) == ALIVE

    asyncio.run(scenario())


def test_what_may_be_repeated_is_answered_by_the_next_member(calls: FakeCalls) -> None:
    async def scenario() -> None:
        assert await asyncio.gather(*(calls.ask(ask_of, None) for _ in range(4))) == [ALIVE] * 4

    asyncio.run(scenario())


def test_a_stream_that_ends_moves_on_and_names_its_own_member() -> None:
    calls = FakeCalls(EtcdSettings(endpoints=(ALIVE, "http://other:2379")))

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable, match=ALIVE):
            await calls.exchange(stream_of, None)
        stream = await calls.open_stream(stream_of)
        with pytest.raises(StoreUnavailable, match="other"):
            await calls.read(stream)
        assert await calls.ask(ask_of, None) == ALIVE

    asyncio.run(scenario())
