"""A leader's sessions with its followers: what a fetch is told, when it is woken, and who is no follower."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest

from millrace.broker.replication.peers import Peers
from millrace.broker.replication.replica_sessions import ReplicaSession, ReplicaSessions, SessionRefused
from millrace.core.ids import NodeId
from millrace.log.config import LogConfig
from millrace.metadata.image import EMPTY, BrokerState, Image
from millrace.metadata.service import Metadata
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition, TopicStats
from millrace.replica.partitions import Partitions
from millrace.sim.volume import SimVolume
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of
from tests.unit.metadata.virtual_time import run_virtually

ME, FOLLOWER, OTHER = NodeId(1), NodeId(2), NodeId(3)
EPOCH = 40
LEADER_EPOCH = 5


class FixedMetadata:
    def __init__(self) -> None:
        brokers = {
            node_id: BrokerState(
                node_id=node_id, incarnation=f"run-{node_id}", rack=None, endpoints=(), epoch=EPOCH
            )
            for node_id in (ME, FOLLOWER, OTHER)
        }
        self.image: Image = replace(EMPTY, brokers=brokers)


class Witness:
    """In the place of the connections to peers."""

    def __init__(self) -> None:
        self.met_brokers: list[int] = []
        self.suspects: list[int] = []

    def met(self, node_id: int) -> None:
        self.met_brokers.append(node_id)

    def suspect(self, node_id: int) -> None:
        self.suspects.append(node_id)


class Waiting:
    """A fetch that waits, and says when it would be answered."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def wake(self) -> None:
        self._tell("soon")

    def wake_later(self) -> None:
        self._tell("later")

    def send_now(self) -> None:
        self._tell("now")

    def permissions_changed(self) -> None:
        self._tell("if it must be")


class Leader:
    def __init__(self) -> None:
        self.disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig())
        self.partition = Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), lambda _: None)
        self.lead((ME, FOLLOWER))
        self.partitions = Partitions()
        self.partitions.add(self.partition)
        self.witness = Witness()
        self.sessions = ReplicaSessions(
            cast("Metadata", FixedMetadata()),
            self.partitions,
            cast("Peers", self.witness),
            node_id=ME,
            chance=random.Random(2),
        )

    def lead(self, isr: tuple[int, ...], leader_epoch: int = LEADER_EPOCH) -> None:
        leadership = Leadership(
            ME,
            leader_epoch=leader_epoch,
            epoch_start_offset=self.partition.log.log_end_offset,
            lag_ms_max=1_000,
            now_ms=0,
        )
        leadership.update(replicas=(ME, FOLLOWER, OTHER), isr=isr, partition_epoch=1, now_ms=0)
        self.partition.lead_replicas(leadership)

    def append(self, *values: bytes) -> None:
        self.partition.append(batch_of(*values), NOW_MS)

    def enter(self, session: ReplicaSession | None, *asked: FetchPartition) -> ReplicaSession:
        return self.sessions.enter(
            request(
                asked,
                session_id=0 if session is None else session.session_id,
                session_epoch=0 if session is None else session.epoch,
            ),
            now_ms=0,
        )

    def read(self, session: ReplicaSession, max_bytes: int = 1 << 20) -> list[PartitionData]:
        return [data for topic in self.sessions.read(session, max_bytes) for data in topic.partitions]


def request(
    asked: tuple[FetchPartition, ...] = (),
    *,
    replica_id: int = FOLLOWER,
    replica_epoch: int = EPOCH,
    session_id: int = 0,
    session_epoch: int = 0,
    forgotten: tuple[int, ...] = (),
) -> FetchRequest:
    return FetchRequest(
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic("", TOPIC_ID, list(asked))] if asked else [],
        forgotten=[ForgottenTopic("", TOPIC_ID, forgotten)] if forgotten else [],
        rack_id="",
    )


def asked(
    offset: int, *, last_epoch: int = -1, leader_epoch: int = LEADER_EPOCH, index: int = 0, start: int = 0
) -> FetchPartition:
    return FetchPartition(index, leader_epoch, offset, last_epoch, start, 1 << 20)


@pytest.fixture
def leader() -> Iterator[Leader]:
    leader = Leader()
    yield leader
    leader.disk.dispose()


def test_s13_only_a_registered_broker_with_its_epoch_is_a_replica(leader: Leader) -> None:
    is_replica = leader.sessions.is_replica
    assert is_replica(request())
    assert not is_replica(request(replica_epoch=EPOCH + 1))
    assert not is_replica(request(replica_epoch=-1))
    assert not is_replica(request(replica_id=9))
    assert not is_replica(request(replica_id=ME)), "nobody follows itself"


def test_records_are_told_once_until_the_follower_names_the_partition_again(leader: Leader) -> None:
    leader.append(b"a")
    session = leader.enter(None, asked(0))
    (data,) = leader.read(session)
    assert data.records is not None
    leader.append(b"b")
    assert leader.read(session) == []
    leader.enter(session, asked(1, last_epoch=LEADER_EPOCH))
    (data,) = leader.read(session)
    assert data.records is not None


def test_a_fetch_tells_the_leader_what_the_follower_has(leader: Leader) -> None:
    leader.append(b"a")
    session = leader.enter(None, asked(0))
    assert leader.partition.log.high_watermark == 0
    leader.read(session)
    leader.enter(session, asked(1, last_epoch=LEADER_EPOCH))
    assert leader.partition.log.high_watermark == 1
    (data,) = leader.read(session)
    assert (data.high_watermark, data.records) == (1, None)
    assert leader.read(session) == [], "the high watermark is told once"


def test_a_waiting_fetch_is_woken_by_an_append_at_once_and_by_the_high_watermark_soon(leader: Leader) -> None:
    session = leader.enter(None, asked(0))
    leader.read(session)
    calls: list[str] = []
    session.waiting = Waiting(calls.append)
    leader.append(b"a")
    leader.append(b"b")
    assert calls == ["soon"], "the second append finds it awake"
    (target,) = session.targets.values()
    target.high_watermark_moved()
    leader.enter(session, asked(0))
    assert calls == ["soon", "later", "now"], "an answer goes before the next request is looked at"


def test_where_the_log_begins_is_told_until_the_follower_has_heard_it(leader: Leader) -> None:
    """Records are deleted between an answer and the next question: nothing else might be told for hours, and
    whoever deletes waits for the follower."""
    leader.append(b"a", b"b")
    session = leader.enter(None, asked(0))
    leader.read(session)
    leader.enter(session, asked(2, last_epoch=LEADER_EPOCH))
    (data,) = leader.read(session)
    assert (data.high_watermark, data.log_start_offset) == (2, 0)
    # It names the partition for another reason, just when the records go.
    next(iter(session.targets.values())).asked = None
    leader.disk.run(leader.partition.log.delete_records_before(1))
    leader.partition.changed()
    assert leader.read(session) == []
    for _ in range(2):
        leader.enter(session, asked(2, last_epoch=LEADER_EPOCH))
        (data,) = leader.read(session)
        assert (data.log_start_offset, data.records) == (1, None)
        assert leader.read(session) == [], "once for each question"
    leader.enter(session, asked(2, last_epoch=LEADER_EPOCH, start=1))
    assert leader.read(session) == []


def test_another_history_is_told_and_does_not_count(leader: Leader) -> None:
    leader.append(b"a")
    session = leader.enter(None, asked(3, last_epoch=4))
    (data,) = leader.read(session)
    assert data.diverging_epoch == (4, 0)
    assert data.records is None
    leadership = leader.partition.leadership
    assert leadership is not None
    assert all(follower.log_end_offset < 0 for follower in leadership.followers)


def test_another_term_is_refused(leader: Leader) -> None:
    for epoch, code in (
        (LEADER_EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (LEADER_EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        session = leader.enter(None, asked(0, leader_epoch=epoch))
        (data,) = leader.read(session)
        assert data.error_code == code
        assert leader.read(session) == [], "errors are told once"


def test_who_waits_is_told_when_leadership_ends(leader: Leader) -> None:
    session = leader.enter(None, asked(0))
    leader.read(session)
    leader.partition.follow(OTHER, LEADER_EPOCH + 1)
    (data,) = leader.read(session)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_f2_a_high_watermark_is_not_told_to_one_that_asked_in_an_earlier_term(leader: Leader) -> None:
    """Between the terms another one may have led, and what the follower has from it may differ from what is
    committed now: it would give its own records out as committed."""
    leader.append(b"a")
    session = leader.enter(None, asked(0))
    assert leader.read(session)[0].records is not None
    leader.partition.follow(OTHER, LEADER_EPOCH + 1)
    assert leader.read(session) == [], "there is nothing that it waits for"
    leader.lead((ME,), LEADER_EPOCH + 2)
    leader.append(b"b")
    assert leader.partition.log.high_watermark == 2
    assert leader.read(session) == []
    leader.enter(session, asked(2, last_epoch=LEADER_EPOCH + 2, leader_epoch=LEADER_EPOCH + 2))
    (data,) = leader.read(session)
    assert (data.error_code, data.high_watermark) == (0, 2), "one who asks in this term is told"


def test_f2_a_high_watermark_is_not_told_to_one_that_was_refused_until_it_asks_again(leader: Leader) -> None:
    """It may ask in the term that this broker is about to begin: nobody has compared their histories yet."""
    leader.append(b"a")
    session = leader.enter(None, asked(0, leader_epoch=LEADER_EPOCH + 1))
    assert leader.read(session)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    leader.lead((ME,), LEADER_EPOCH + 1)
    leader.append(b"b")
    assert leader.partition.log.high_watermark == 2
    assert leader.read(session) == []


def test_f2_a_high_watermark_is_not_told_to_one_with_another_history(leader: Leader) -> None:
    leader.append(b"a")
    session = leader.enter(None, asked(3, last_epoch=LEADER_EPOCH - 1))
    assert leader.read(session)[0].diverging_epoch is not None
    leader.lead((ME,))
    leader.append(b"b")
    assert leader.partition.log.high_watermark == 2
    assert leader.read(session) == []


def test_an_offset_that_is_gone_is_answered_with_where_the_log_begins(leader: Leader) -> None:
    leader.disk.run(leader.partition.log.truncate_fully_and_start_at(100))
    session = leader.enter(None, asked(0))
    (data,) = leader.read(session)
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 100)


def test_what_does_not_fit_is_told_by_the_next_answer(leader: Leader) -> None:
    second = Partition(
        PARTITION._replace(partition=1),
        TOPIC_ID,
        leader.disk.log(PARTITION._replace(partition=1)),
        TopicStats(),
        lambda _: None,
    )
    leader.partitions.add(second)
    leadership = Leadership(ME, leader_epoch=LEADER_EPOCH, epoch_start_offset=0, lag_ms_max=1_000, now_ms=0)
    leadership.update(replicas=(ME, FOLLOWER), isr=(ME, FOLLOWER), partition_epoch=1, now_ms=0)
    second.lead_replicas(leadership)
    leader.append(b"a")
    second.append(batch_of(b"b"), NOW_MS)
    session = leader.enter(None, asked(0), asked(0, index=1))
    assert [data.partition for data in leader.read(session, max_bytes=1)] == [0]
    assert [data.partition for data in leader.read(session, max_bytes=1)] == [1]


def test_sessions_that_are_not_known_are_refused(leader: Leader) -> None:
    with pytest.raises(SessionRefused) as refused:
        leader.sessions.enter(request(session_id=7, session_epoch=1), 0)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = leader.enter(None, asked(0))
    with pytest.raises(SessionRefused) as refused:
        leader.sessions.enter(request(session_id=session.session_id, session_epoch=9), 0)
    assert refused.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_forgotten_partition_is_told_no_more(leader: Leader) -> None:
    session = leader.enter(None, asked(0))
    leader.read(session)
    leader.sessions.enter(
        request(session_id=session.session_id, session_epoch=session.epoch, forgotten=(0,)), 0
    )
    leader.append(b"a")
    assert leader.read(session) == []


def test_a_lost_connection_makes_the_broker_a_suspect(leader: Leader) -> None:
    session = leader.enter(None, asked(0))
    assert leader.witness.met_brokers == [FOLLOWER]
    leader.enter(None, asked(0))
    leader.sessions.connection_ended(session)
    assert leader.witness.suspects == [], "it had come back already"
    leader.sessions.connection_ended(leader.sessions.sessions[0])
    assert leader.witness.suspects == [FOLLOWER]


def test_a_follower_that_has_nothing_left_to_fetch_here_may_go(leader: Leader) -> None:
    leader.enter(None, asked(0))
    leader.partition.follow(OTHER, LEADER_EPOCH + 1)
    leader.sessions.connection_ended(leader.sessions.sessions[0])
    assert leader.witness.suspects == []
    assert leader.sessions.sessions == ()


def test_nobody_waits_for_a_follower_that_is_about_to_stop(leader: Leader) -> None:
    metadata = cast("FixedMetadata", leader.sessions._metadata)
    metadata.image = replace(metadata.image, stopping={FOLLOWER: 1})
    leader.lead((ME,), LEADER_EPOCH + 1)
    leader.append(b"a")
    leader.enter(None, asked(1, last_epoch=LEADER_EPOCH + 1, leader_epoch=LEADER_EPOCH + 1))
    leader.append(b"b")
    assert leader.partition.log.high_watermark == 2
    metadata.image = replace(metadata.image, stopping={})
    leader.enter(None, asked(2, last_epoch=LEADER_EPOCH + 1, leader_epoch=LEADER_EPOCH + 1))
    leader.append(b"c")
    assert leader.partition.log.high_watermark == 2, "one that keeps up is waited for, or it could never join"


def test_a_follower_that_lost_what_was_committed_is_reported(leader: Leader) -> None:
    wanted: list[Partition] = []
    leader.partition.isr_wanted = wanted.append
    leader.append(b"a")
    session = leader.enter(None, asked(1, last_epoch=LEADER_EPOCH))
    assert leader.partition.log.high_watermark == 1
    leader.enter(session, asked(0))
    assert wanted == [leader.partition]


def test_a_follower_that_is_behind_is_held_to_the_rate_and_woken_when_there_is_more(leader: Leader) -> None:
    async def body() -> None:
        leader.lead((ME,), LEADER_EPOCH + 1)
        leader.partition.is_throttled_as_leader = True
        size = len(batch_of(bytes(1_000)))
        leader.sessions.throttle.set_rate(2 * size)
        for _ in range(12):
            leader.append(bytes(1_000))
        loop = asyncio.get_running_loop()
        started = loop.time()
        session, offset, answers = None, 0, 0
        woken = asyncio.Event()
        waiting = Waiting(lambda when: woken.set() if when == "soon" else None)
        while offset < 10:
            question = asked(offset, leader_epoch=LEADER_EPOCH + 1)
            session = leader.enter(session, question._replace(max_bytes=size))
            while not (read := leader.read(session)):
                answers += 1
                session.waiting = waiting
                leader.append(b"more")
                assert not woken.is_set(), "what is appended meanwhile wakes nobody"
                await woken.wait()
                session.waiting = None
                woken.clear()
            assert read[0].records is not None
            offset += 1
        # A bucket of two batches to begin with, then two in each second.
        assert 3.5 <= loop.time() - started <= 4.5
        assert answers <= 10, "no fetch was answered in vain twice"

    run_virtually(body())


def test_a_follower_that_others_wait_for_is_never_held_back(leader: Leader) -> None:
    async def body() -> None:
        leader.partition.is_throttled_as_leader = True
        leader.sessions.throttle.set_rate(1)
        session = None
        for offset in range(20):
            leader.append(bytes(1_000))
            session = leader.enter(session, asked(offset, last_epoch=-1 if offset == 0 else LEADER_EPOCH))
            (data,) = [data for data in leader.read(session) if data.records is not None]
            assert data.error_code == 0

    run_virtually(body())


def test_a_change_of_leadership_is_told_to_one_that_is_held_back(leader: Leader) -> None:
    async def body() -> None:
        leader.lead((ME,), LEADER_EPOCH + 1)
        leader.partition.is_throttled_as_leader = True
        leader.sessions.throttle.set_rate(1)
        leader.append(bytes(1_000))
        leader.append(bytes(1_000))
        session = leader.enter(None, asked(0, leader_epoch=LEADER_EPOCH + 1)._replace(max_bytes=1))
        assert leader.read(session)[0].records is not None
        leader.enter(session, asked(1, leader_epoch=LEADER_EPOCH + 1, last_epoch=LEADER_EPOCH + 1))
        assert leader.read(session) == []
        assert leader.sessions.throttle.waiting_count == 1
        leader.partition.follow(OTHER, LEADER_EPOCH + 2)
        (data,) = leader.read(session)
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader.sessions.connection_ended(session)
        assert leader.sessions.throttle.waiting_count == 0
        leader.sessions.throttle.stop()

    run_virtually(body())
