"""Questions over a connection in a loop end: with an answer, with the connection, or in time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.client.async_connection import AsyncConnection, connect
from millrace.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    InvalidAnswer,
    NobodyListens,
    NotReached,
    TimedOut,
)
from millrace.client.opening import Question, Questions
from millrace.core.override import override
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.unit.metadata.virtual_time import run_virtually


class Broker:
    """In the place of a transport: keeps what is sent, and answers when the test says so."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.sent: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def says(self, data: bytes) -> None:
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def answers(self, correlation_id: int, code: int) -> None:
        body = schema.response_encoder(ApiKey.HEARTBEAT, 4)(HeartbeatResponse(error_code=code))
        self.says(struct.pack(">iib", 5 + len(body), correlation_id, 0) + body)


def connected() -> tuple[AsyncConnection, Broker]:
    connection = AsyncConnection("broker:9092", "me")
    broker = Broker(connection)
    connection.connection_made(cast("asyncio.BaseTransport", broker))
    return connection, broker


def ask(connection: AsyncConnection) -> asyncio.Future[Any]:
    return connection.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g"))


def test_many_questions_are_on_their_way_at_once_and_answered_in_any_order() -> None:
    async def scenario() -> None:
        connection, broker = connected()
        asked = [ask(connection) for _ in range(3)]
        assert len(broker.sent) == 3
        for number in (2, 3, 1):
            broker.answers(number, number)
        assert [(await each).error_code for each in asked] == [1, 2, 3]

    run_virtually(scenario())


@pytest.mark.parametrize("error, words", [
    (None, r"^broker:9092 closed the connection$"),
    (ConnectionResetError(104, "reset"), r"^the connection to broker:9092 failed: \[Errno 104\] reset$"),
])  # fmt: skip
def test_a_connection_that_ends_in_the_middle_of_an_answer_fails_all_who_wait(
    error: Exception | None, words: str
) -> None:
    async def scenario() -> None:
        connection, broker = connected()
        lost: list[AsyncConnection] = []
        connection.on_lost = lost.append
        asked = [ask(connection), ask(connection)]
        broker.says(struct.pack(">ii", 100, 1) + b"only this")
        connection.connection_lost(error)
        for each in asked:
            with pytest.raises(ConnectionClosed, match=words):
                await each
        assert lost == [connection]
        with pytest.raises(ConnectionClosed, match=words):
            _ = ask(connection)
        unsent: list[memoryview | None] = []
        connection.send(ApiKey.HEARTBEAT, 4, b"", unsent.append)
        assert (unsent, len(broker.sent)) == ([None], 2)

    run_virtually(scenario())


def test_without_an_answer_in_time_the_connection_is_given_up() -> None:
    """What comes late must not meet the next question."""

    async def scenario() -> None:
        connection, broker = connected()
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimedOut, match=r"^broker:9092 gave no answer within 3 s$"):
            await connection.answer_of(ask(connection), 3.0)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
        assert broker.is_aborted
        assert connection.is_lost, "at once: the next one must not choose it"

    run_virtually(scenario())


def test_an_answer_that_comes_after_its_asker_left_is_no_trouble() -> None:
    async def scenario() -> None:
        connection, broker = connected()
        asked, other = ask(connection), ask(connection)
        asked.cancel()
        broker.answers(1, 5)
        broker.answers(2, 6)
        assert (await other).error_code == 6
        assert not connection.is_lost

    run_virtually(scenario())


@pytest.mark.parametrize("sent, words", [
    (b"HTTP", "broker:9092 answers, but not with the Kafka protocol: a frame of 1213486160 bytes"),
    (struct.pack(">i", -5), "not with the Kafka protocol: a frame of -5 bytes"),
    (struct.pack(">ii", 4, 9), "broker:9092 answered request 9, which nobody waits for"),
    (struct.pack(">iib", 7, 1, 0) + b"??", "broker:9092 sent an answer to Heartbeat that is none"),
])  # fmt: skip
def test_nonsense_fails_all_who_wait_and_is_logged(
    sent: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        connection, broker = connected()
        asked = [ask(connection), ask(connection)]
        broker.says(sent)
        for each in asked:
            with pytest.raises(InvalidAnswer, match=words):
                await each
        assert connection.is_lost

    run_virtually(scenario())
    assert "broker:9092" in caplog.text


def test_questions_are_asked_one_after_the_other() -> None:
    def questions() -> Questions[list[int]]:
        first = yield Question(ApiKey.HEARTBEAT, 4, HeartbeatRequest())
        second = yield Question(ApiKey.HEARTBEAT, 4, HeartbeatRequest())
        return [first.error_code, second.error_code]

    async def scenario() -> None:
        connection, broker = connected()
        asking = asyncio.get_running_loop().create_task(connection.answers_to(questions(), 5.0))
        for number in (1, 2):
            await asyncio.sleep(0.1)
            assert len(broker.sent) == number, "the second waits for the first"
            broker.answers(number, 10 * number)
        assert await asking == [10, 20]

    run_virtually(scenario())


class Doors(asyncio.SelectorEventLoop):
    """Connects, or fails, or neither for an hour."""

    def __init__(self, outcome: Exception | bool) -> None:
        super().__init__()
        self._outcome = outcome

    @override
    async def create_connection(  # type: ignore[override]
        self, make: Callable[[], AsyncConnection], host: str, port: int
    ) -> tuple[None, AsyncConnection]:
        assert (host, port) == ("h", 1)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if not self._outcome:
            await asyncio.sleep(3600)
        return None, make()


@pytest.mark.parametrize("outcome, kind, words", [
    (ConnectionRefusedError(111, "Connection refused"), NobodyListens, "no broker answers at h:1: Conn"),
    (OSError("Multiple exceptions"), NotReached, "no broker answers at h:1: Multiple exceptions"),
    (False, NotReached, "no broker answers at h:1: TimeoutError"),
])  # fmt: skip
def test_what_hinders_a_connection_is_told_with_the_address(
    outcome: Exception | bool, kind: type[ConnectionFailed], words: str
) -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionFailed, match=words) as refused:
            await connect(lambda address: AsyncConnection(address, "me"), "h", 1, timeout_s=0.01)
        assert type(refused.value) is kind

    with asyncio.Runner(loop_factory=lambda: Doors(outcome)) as runner:
        runner.run(scenario())


def test_a_connection_knows_its_address() -> None:
    async def scenario() -> None:
        found = await connect(lambda address: AsyncConnection(address, "me"), "h", 1, timeout_s=None)
        assert found.address == "h:1"

    with asyncio.Runner(loop_factory=lambda: Doors(True)) as runner:
        runner.run(scenario())
