"""An outbox is emptied in order; what fails is tried again, and nothing is taken out before it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millrace.broker.auditing import writing
from millrace.broker.auditing.writing import EVENTS_AT_ONCE, OutboxWriter
from millrace.security.audit.events import Event
from millrace.security.audit.outbox import Outbox
from tests.harness.background import background
from tests.unit.security.audit.samples import denied, event


class Place:
    def __init__(self) -> None:
        self.written: list[Event] = []
        self.sizes: list[int] = []
        self.refuses = 0

    async def write(self, events: Sequence[Event]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError("no space left")
        self.sizes.append(len(events))
        self.written += events


def test_whatever_comes_is_written_in_its_order(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        place, outbox = Place(), Outbox("file", 1_000)
        writer = OutboxWriter(outbox, place.write)
        events = [event(denied(str(number))) for number in range(2 * EVENTS_AT_ONCE + 1)]
        async with background() as tasks:
            _ = tasks.keep("writer", writer.run)
            for one in events:
                outbox.put(one, 0.0)
            await writer.drain(5.0)
            assert place.written == events
            assert max(place.sizes) == EVENTS_AT_ONCE
            outbox.put(events[0], 0.0)
            await writer.drain(5.0)
        assert outbox.written == len(events) + 1
        assert not caplog.records

    asyncio.run(scenario())


def test_what_cannot_be_written_stays_and_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr(writing, "RETRY_S", 0.001)
        place, outbox = Place(), Outbox("file", 10)
        place.refuses = 3
        writer = OutboxWriter(outbox, place.write)
        async with background() as tasks:
            _ = tasks.keep("writer", writer.run)
            outbox.put(event(denied("a")), 0.0)
            await writer.drain(5.0)
        assert [one.what for one in place.written] == [denied("a")]
        assert outbox.failures == 3
        messages = [record.message for record in caplog.records]
        assert messages == ["the audit cannot be written, and is tried again", "the audit is written again"]

    asyncio.run(scenario())


def test_a_stop_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        outbox = Outbox("file", 10)

        async def never(_events: Sequence[Event]) -> None:
            await asyncio.Event().wait()

        writer = OutboxWriter(outbox, never)
        async with background() as tasks:
            _ = tasks.keep("writer", writer.run)
            outbox.put(event(denied("a")), 0.0)
            await writer.drain(0.05)
        assert "could not be written to its end" in caplog.text

    asyncio.run(scenario())
