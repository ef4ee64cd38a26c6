"""The audit of a running broker tells of its start and its stop, and asks again for what goes on all day."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millrace.broker.auditing import auditing
from millrace.broker.auditing.auditing import Auditing
from millrace.broker.auditing.writing import OutboxWriter
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.binding import Operation, ResourceType
from millrace.security.acls.decisions import Access, Decisions
from millrace.security.audit.auditor import AuditPolicy
from millrace.security.audit.events import Event, Kind, Lifecycle
from millrace.security.audit.outbox import Outbox
from millrace.security.principals import NOBODY
from tests.harness.background import background
from tests.unit.security.audit.samples import Hands, auditor_with


def test_start_and_stop_are_told_and_written(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        written: list[Event] = []

        async def write(events: Sequence[Event]) -> None:
            written.extend(events)

        outbox, access = Outbox("file", 10), Access(Authorizer())
        part = Auditing(auditor_with([outbox]), [OutboxWriter(outbox, write)], access, broker="broker 3")
        assert access.auditor is part.auditor
        async with background() as tasks:
            part.start(tasks)
            decisions = Decisions(access, NOBODY, "h")
            for _ in range(2):
                assert not decisions.allows(Operation.READ, ResourceType.TOPIC, "orders")
            part.stops()
            await part.write_all()
        texts = [one.what.text for one in written if isinstance(one.what, Lifecycle)]
        assert texts == ["broker 3 has started", "broker 3 stops"]
        assert [one.count for one in written] == [1, 1, 1, 1], "the repeat is told at the end"

    asyncio.run(scenario())


@pytest.mark.parametrize("kinds, is_renewed", [((Kind.DATA,), True), ((Kind.DENIED,), False)])
def test_who_reads_and_writes_all_day_is_asked_for_again(
    kinds: tuple[Kind, ...], is_renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(auditing, "TURN_S", 0.01)
        monkeypatch.setattr(auditing, "WINDOW_MS", 20)
        access = Access(Authorizer())
        before = access.authorizer
        policy = AuditPolicy(kinds=frozenset(kinds))
        part = Auditing(auditor_with([], Hands(), policy), [], access, broker="broker 3")
        async with background() as tasks:
            part.start(tasks)
            await asyncio.sleep(0.1)
        assert (access.authorizer is not before) == is_renewed

    asyncio.run(scenario())
