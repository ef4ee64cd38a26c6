"""What a thread says before it is done reaches the loop: in order, on its thread, before the result."""

from __future__ import annotations

import asyncio
import threading

from millrace.core.threads import TellLoop


def test_calls_of_a_thread_are_carried_out_on_the_loop_in_order_and_before_its_result() -> None:
    heard: list[tuple[int, int]] = []

    async def body() -> int:
        loop = asyncio.get_running_loop()
        tell = TellLoop(loop, lambda number: heard.append((number, threading.get_ident())))

        def work() -> int:
            for number in range(100):
                tell(number)
            return threading.get_ident()

        worker = await loop.run_in_executor(None, work)
        # All of it was heard by the time the result is here: nothing is awaited in between.
        assert [number for number, _ in heard] == list(range(100))
        return worker

    worker = asyncio.run(body())
    assert {thread for _, thread in heard} == {threading.get_ident()}
    assert worker != threading.get_ident()


def test_a_call_from_the_loop_itself_waits_for_the_next_turn() -> None:
    heard: list[int] = []

    async def body() -> None:
        TellLoop(asyncio.get_running_loop(), heard.append)(7)
        assert heard == []
        await asyncio.sleep(0)
        assert heard == [7]

    asyncio.run(body())
