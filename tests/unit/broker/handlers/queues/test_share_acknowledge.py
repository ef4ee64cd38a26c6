"""ShareAcknowledge: Kafka's errors in Kafka's order, and an answer when it is stored."""

from __future__ import annotations

import asyncio

import pytest

from millrace.core.errors import MillraceError
from millrace.queues.state.errors import StateEpochFenced
from millrace.wire.error_codes import ErrorCode
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.queues.members import (
    ACCEPT,
    GROUP,
    RELEASE,
    RENEW,
    Ack,
    Member,
    Queue,
    parts,
    queue,
    settle,
)


async def holder(broker: Broker, jobs: Queue, version: int = 2) -> Member:
    """A member that holds offsets 0 to 4."""
    jobs.append(5)
    member = Member(broker, version=version)
    member.fetch((jobs, 0))
    await settle()
    member.take()
    return member


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_acknowledged_is_stored_when_the_answer_comes(broker: Broker, version: int) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = await holder(broker, jobs, version)
        member.acknowledge((jobs, 0, [(0, 4, [ACCEPT])]))
        await settle()
        answer = member.acknowledged()
        assert parts(answer)[0].error_code == 0
        assert answer.acquisition_lock_timeout_ms == (30_000 if version == 2 else 0)
        stored = await broker.persister.read(broker.shares.shares[0].key, 0)
        assert stored.start_offset == 5  # type: ignore[union-attr]

    broker.run(work())


@pytest.mark.parametrize(
    "acks, code",
    [
        ([(3, 2, [1])], ErrorCode.INVALID_REQUEST),
        ([(2, 3, [1]), (0, 1, [1])], ErrorCode.INVALID_REQUEST),
        ([(0, 3, [1]), (2, 4, [1])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [1, 1])], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [1, 5])], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [1, -1])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [RENEW])], ErrorCode.INVALID_REQUEST),
        ([(0, 5, [1])], ErrorCode.INVALID_REQUEST),
        ([(0, 2**62, [1])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [ACCEPT]), (1, 1, [RELEASE])], ErrorCode.NONE),
        ([], ErrorCode.NONE),
    ],
)
def test_what_makes_no_sense_is_refused(broker: Broker, acks: list[Ack], code: ErrorCode) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = await holder(broker, jobs)
        member.acknowledge((jobs, 0, acks))
        await settle()
        assert parts(member.acknowledged())[0].error_code == code
        rules = broker.shares.shares[0].rules
        assert rules is not None
        assert rules.acquired_count == (5 if code or not acks else 3), "all or nothing"

    broker.run(work())


def test_renewals_need_a_version_and_a_flag(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        old = await holder(broker, jobs, 1)
        old.acknowledge((jobs, 0, [(0, 0, [RENEW])]))
        await settle()
        assert parts(old.acknowledged())[0].error_code == ErrorCode.INVALID_REQUEST
        new = await holder(broker, jobs)
        new.acknowledge((jobs, 0, [(5, 9, [RENEW])]), is_renew_ack=True)
        await settle()
        assert parts(new.acknowledged())[0].error_code == 0

    broker.run(work())


def test_other_members_and_unknown_partitions(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        await holder(broker, jobs)
        other = Member(broker, "m2")
        other.fetch((jobs, 0), max_records=0)
        other.take()
        other.acknowledge((jobs, 0, [(0, 0, [ACCEPT])]))
        await settle()
        assert parts(other.acknowledged())[0].error_code == ErrorCode.INVALID_RECORD_STATE
        other.acknowledge((jobs, 3, [(0, 0, [ACCEPT])]))
        assert parts(other.acknowledged())[3].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        absent = Queue(broker, "absent", bytes(15) + b"x", ())  # type: ignore[arg-type]
        other.acknowledge((absent, 0, [(1, 0, [])]))
        assert parts(other.acknowledged())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    broker.run(work())


def test_a_share_partition_that_is_not_here_is_unknown(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = Member(broker)
        member.fetch()
        member.take()
        member.acknowledge((jobs, 0, [(0, 0, [ACCEPT])]))
        assert parts(member.acknowledged())[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    broker.run(work())


def test_sessions_are_neither_opened_nor_found_where_there_are_none(broker: Broker) -> None:
    async def work() -> None:
        member = Member(broker)
        for epoch, code in (
            (0, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
            (1, ErrorCode.SHARE_SESSION_NOT_FOUND),
            (-1, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ):
            member.acknowledge(epoch=epoch)
            assert member.acknowledged().error_code == code
        nobody = Member(broker, "", None)
        nobody.acknowledge(epoch=1)
        assert nobody.acknowledged().error_code == ErrorCode.INVALID_REQUEST

    broker.run(work())


def test_the_final_epoch_closes_the_session(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = await holder(broker, jobs)
        member.acknowledge((jobs, 0, [(0, 0, [ACCEPT])]), epoch=-1)
        await settle()
        assert parts(member.acknowledged())[0].error_code == 0
        assert len(broker.shares.sessions) == 0
        member.acknowledge(epoch=-1)
        assert member.acknowledged().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    broker.run(work())


class Failing:
    """A store that answers writes with an error, now or later."""

    def __init__(self, error: MillraceError, *, is_late: bool) -> None:
        self.error = error
        self.is_late = is_late

    def write(self, _key: object, **_what: object) -> object:
        if not self.is_late:
            return self.error
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.error)
        return future


@pytest.mark.parametrize("is_late", [False, True])
def test_what_cannot_be_stored_is_taken_back(broker: Broker, is_late: bool) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = await holder(broker, jobs)
        store = broker.shares.store
        broker.shares.store = Failing(MillraceError("no"), is_late=is_late)  # type: ignore[assignment]
        member.acknowledge((jobs, 0, [(0, 4, [ACCEPT])]))
        await settle()
        assert parts(member.acknowledged())[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        broker.shares.store = store
        member.acknowledge((jobs, 0, [(0, 4, [ACCEPT])]))
        await settle()
        assert parts(member.acknowledged())[0].error_code == 0

    broker.run(work())


def test_who_was_fenced_sends_clients_to_the_leader(broker: Broker) -> None:
    jobs = queue(broker)

    async def work() -> None:
        member = await holder(broker, jobs)
        store = broker.shares.store
        fenced = StateEpochFenced("key", 1, current=2)
        broker.shares.store = Failing(fenced, is_late=True)  # type: ignore[assignment]
        member.acknowledge((jobs, 0, [(0, 4, [ACCEPT])]))
        await settle()
        answer = member.acknowledged()
        part = parts(answer)[0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert part.current_leader.leader_id == 1
        assert [(node.node_id, node.host) for node in answer.node_endpoints] == [(1, "registered.test")]
        assert len(broker.shares) == 0
        broker.shares.store = store
        member.fetch()
        await settle()
        assert parts(member.fetched())[0].acquired_records[0].delivery_count == 1
        assert broker.shares.stats[GROUP].acquired == 5

    broker.run(work())
