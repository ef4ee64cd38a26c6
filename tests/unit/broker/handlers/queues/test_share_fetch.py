"""A ShareFetch finds its session, or is told why it has none."""

from __future__ import annotations

import asyncio

import pytest

from millrace.wire.error_codes import ErrorCode
from tests.unit.broker.handlers.broker import SHARE_SESSIONS_MAX, Broker
from tests.unit.broker.handlers.queues.members import (
    ACCEPT,
    RENEW,
    Member,
    parts,
    queue,
    runs,
    settle,
)


@pytest.mark.parametrize(
    "group, member, epoch, code",
    [
        (None, "m", 0, ErrorCode.INVALID_REQUEST),
        ("g", "", 0, ErrorCode.INVALID_REQUEST),
        ("g", "m" * 37, 0, ErrorCode.INVALID_REQUEST),
        ("g", "m", 1, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ("g", "m", -1, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ("g", "m" * 36, 0, ErrorCode.NONE),
    ],
)
def test_who_asks_must_be_a_member_with_a_session(
    broker: Broker, group: str | None, member: str, epoch: int, code: ErrorCode
) -> None:
    async def ask() -> None:
        asked = Member(broker, member, group)
        asked.fetch(epoch=epoch)
        assert asked.fetched().error_code == code

    broker.run(ask())


def test_epochs_are_checked(broker: Broker) -> None:
    async def ask() -> None:
        member = Member(broker)
        for epoch, code in (
            (0, 0),
            (1, 0),
            (3, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
            (2, 0),
            (0, 0),
            (1, 0),
        ):
            member.fetch(epoch=epoch)
            assert member.fetched().error_code == code

    broker.run(ask())


def test_the_first_fetch_acknowledges_nothing(broker: Broker) -> None:
    jobs = queue(broker)

    async def ask() -> None:
        member = Member(broker)
        member.fetch((jobs, 0, [(0, 0, [ACCEPT])]))
        assert member.fetched().error_code == ErrorCode.INVALID_REQUEST
        assert len(broker.shares.sessions) == 0

    broker.run(ask())


def test_one_session_too_many_waits_and_is_refused(broker: Broker) -> None:
    async def ask() -> None:
        members = [Member(broker, f"m{number}") for number in range(SHARE_SESSIONS_MAX + 1)]
        for member in members[:-1]:
            member.fetch()
            assert member.fetched().error_code == 0
        late = members[-1]
        late.fetch(max_wait_ms=30)
        await settle()
        assert late.take() == b""
        await asyncio.sleep(0.06)
        assert late.fetched().error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        late.fetch(epoch=0, max_wait_ms=0)
        assert late.fetched().error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        members[0].lose()
        late.fetch(epoch=0)
        assert late.fetched().error_code == 0
        assert broker.shares.sessions.lost_count == 1

    broker.run(ask())


def test_a_session_outlives_the_connection_of_the_one_before_it(broker: Broker) -> None:
    async def ask() -> None:
        first, again = Member(broker), Member(broker)
        first.fetch()
        again.fetch()
        first.lose()
        again.take()
        again.fetch()
        assert again.fetched().error_code == 0
        assert first.connection.on_close == {}
        again.lose()
        assert len(broker.shares.sessions) == 0

    broker.run(ask())


def test_partitions_are_added_and_forgotten(broker: Broker) -> None:
    jobs = queue(broker, partitions=2)

    async def ask() -> None:
        member = Member(broker)
        member.fetch((jobs, 0), max_wait_ms=0)
        assert parts(member.fetched()) == {}, "there is nothing to say"
        member.fetch((jobs, 1), forgotten=[(jobs, 0)], max_wait_ms=0)
        assert parts(member.fetched()) == {}
        jobs.append(1, partition=0)
        jobs.append(1, partition=1)
        await settle()
        member.fetch()
        await settle()
        assert sorted(parts(member.fetched())) == [1]

    broker.run(ask())


def test_a_renewal_asks_for_no_records(broker: Broker) -> None:
    jobs = queue(broker)

    async def ask() -> None:
        jobs.append(2)
        member = Member(broker)
        member.fetch((jobs, 0), max_records=1, share_acquire_mode=1)
        await settle()
        assert runs(parts(member.fetched())[0]) == [(0, 0, 1)]
        member.fetch((jobs, 0, [(0, 0, [RENEW])]), is_renew_ack=True, epoch=1)
        refused = member.fetched()
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert refused.error_message == (
            "maxBytes must be set to 0, minBytes must be set to 0, maxRecords must be set to 0, "
            "maxWaitMs must be set to 0, if isRenewAck is true."
        )
        broker.share_clock.now_ms += 20_000
        member.fetch(
            (jobs, 0, [(0, 0, [RENEW])]),
            is_renew_ack=True,
            max_bytes=0,
            min_bytes=0,
            max_records=0,
            max_wait_ms=0,
        )
        await settle()
        part = parts(member.fetched())[0]
        assert (part.acknowledge_error_code, runs(part)) == (0, [])
        broker.share_clock.now_ms += 20_000
        broker.shares.shares[0].expire()
        assert broker.shares.stats["workers"].lock_timeouts == 0
        assert broker.shares.stats["workers"].renew == 1

    broker.run(ask())
