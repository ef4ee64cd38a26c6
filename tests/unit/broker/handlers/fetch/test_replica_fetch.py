"""A follower's fetch: answered at once, soon, or when the follower has more to say."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.replication.replica_sessions import HIGH_WATERMARK_DELAY_S, ReplicaSessions
from millrace.core.ids import NodeId
from millrace.metadata.image import EMPTY, BrokerState
from millrace.security.acls.authorizer import Authorizer
from millrace.security.acls.index import AclIndex
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.replica_fetch_codec import VERSION, Wanted, encode_request
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.fetch.test_repeated_fetches import (
    Consumer,
    Followed,
    batch,
    followed,
    lead_followers,
)
from tests.unit.broker.timers import FakeLoop

ME, FOLLOWER = NodeId(1), NodeId(2)
EPOCH = 40
WAIT_MS = 500


class Follower:
    """Fetches one partition over a connection whose timers run when a test says so."""

    def __init__(self, topic: Followed) -> None:
        self._topic = topic
        self._peer: Consumer = topic.consumer(VERSION)
        self.connection = self._peer.connection
        self.loop = FakeLoop()
        self.connection.loop = cast("Any", self.loop)
        self.session = (0, 0)

    def ask(self, offset: int | None, *, max_wait_ms: int = WAIT_MS) -> None:
        """From this offset on; None for nothing new about the partition."""
        partition = self._topic.partition
        last_epoch = -1 if offset == 0 else partition.leader_epoch
        wanted = (
            []
            if offset is None
            else [Wanted(self._topic.topic_id, 0, partition.leader_epoch, offset, last_epoch, 0, 1 << 20)]
        )
        session_id, session_epoch = self.session
        body = encode_request(
            replica_id=FOLLOWER,
            replica_epoch=EPOCH,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session_id,
            session_epoch=session_epoch,
            wanted=wanted,
            forgotten=[],
        )
        self._peer.receive(struct.pack(">hhihb", ApiKey.FETCH, VERSION, 7, -1, 0) + body)
        self.session = (session_id, session_epoch + 1)

    def has_answer(self) -> bool:
        return bool(self._peer._transport.writes)

    def answer(self) -> tuple[int, bytes]:
        """The high watermark that the answer tells, -1 for none, and its records."""
        decoded = self._peer.decoded()
        assert decoded.error_code == 0
        self.session = (decoded.session_id, self.session[1])
        parts = [part for topic in decoded.responses for part in topic.partitions]
        if not parts:
            return -1, b""
        (part,) = parts
        assert part.error_code == 0
        return part.high_watermark, part.records or b""

    def refusal(self) -> int:
        return int(self._peer.decoded().error_code)


class Suspects:
    def __init__(self) -> None:
        self.nodes: list[int] = []

    def met(self, _node_id: int) -> None:
        """Nobody asks here who was met."""

    def suspect(self, node_id: int) -> None:
        self.nodes.append(node_id)


class Leader:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = followed(broker)
        lead_followers(self.topic.partition)
        self.suspects = Suspects()
        states = {
            node_id: BrokerState(node_id=node_id, incarnation="run", rack=None, endpoints=(), epoch=EPOCH)
            for node_id in (ME, FOLLOWER)
        }
        broker.services.replica_sessions = self.sessions = ReplicaSessions(
            cast("Any", SimpleNamespace(image=replace(EMPTY, brokers=states))),
            broker.services.partitions,
            cast("Any", self.suspects),
            node_id=ME,
            chance=random.Random(1),
        )

    def append(self, value: bytes) -> bytes:
        """Append a batch; its bytes as a follower gets them."""
        partition = self.topic.partition
        offset = partition.log.log_end_offset
        partition.append(batch(value), NOW_MS)
        return partition.log.read(offset, 1 << 20, partition.log.log_end_offset, True).read()


@pytest.fixture
def leader(broker: Broker) -> Iterator[Leader]:
    yield Leader(broker)
    broker.services.replica_sessions = None


def test_records_that_are_there_are_told_at_once(leader: Leader) -> None:
    async def fetch() -> None:
        first = leader.append(b"a")
        follower = Follower(leader.topic)
        follower.ask(0)
        assert follower.answer() == (0, first), "committed or not"
        assert follower.loop.timers == []

    leader.broker.run(fetch())


def test_a_waiting_fetch_gets_all_batches_that_came_together(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.ask(0)
        assert not follower.has_answer()
        both = leader.append(b"a") + leader.append(b"b")
        assert not follower.has_answer(), "soon, not now"
        await asyncio.sleep(0)
        assert follower.answer() == (0, both)
        assert follower.loop.timers == []

    leader.broker.run(fetch())


def test_without_records_a_fetch_ends_with_its_time(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.ask(0, max_wait_ms=0)
        assert follower.answer() == (0, b""), "at once if the follower does not want to wait"
        follower.ask(None)
        follower.loop.advance(WAIT_MS / 1000 - 0.001)
        assert not follower.has_answer()
        follower.loop.advance(0.001)
        assert follower.answer() == (-1, b"")

    leader.broker.run(fetch())


def test_a_high_watermark_alone_waits_for_records_to_travel_with(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        leader.append(b"a")
        follower.ask(0)
        follower.answer()
        follower.ask(1)
        assert leader.topic.partition.log.high_watermark == 1
        assert not follower.has_answer()
        follower.loop.advance(HIGH_WATERMARK_DELAY_S)
        assert follower.answer() == (1, b"")

    leader.broker.run(fetch())


def test_a_high_watermark_that_moves_hastens_a_fetch_that_waits(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.ask(0, max_wait_ms=0)
        follower.answer()
        follower.ask(None)
        follower.loop.advance(0.1)
        (session,) = leader.sessions.sessions
        (target,) = session.targets.values()
        target.high_watermark_moved()
        (timer,) = follower.loop.timers
        assert timer.due == 0.1 + HIGH_WATERMARK_DELAY_S
        follower.loop.advance(HIGH_WATERMARK_DELAY_S / 2)
        target.high_watermark_moved()
        assert follower.loop.timers == [timer], "the first news sets the time"
        follower.loop.advance(HIGH_WATERMARK_DELAY_S / 2)
        assert follower.has_answer()

    leader.broker.run(fetch())


def test_a_follower_with_more_to_say_has_its_waiting_fetch_answered_first(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.ask(0, max_wait_ms=0)
        follower.answer()
        follower.ask(None)
        assert not follower.has_answer()
        follower.ask(None)
        assert follower.answer() == (-1, b""), "the first of them; the second waits"
        assert len(follower.loop.timers) == 1

    leader.broker.run(fetch())


def test_a_session_that_is_not_known_is_refused(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.session = (77, 3)
        follower.ask(0)
        assert follower.refusal() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    leader.broker.run(fetch())


def test_a_follower_whose_connection_ends_is_a_suspect(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.ask(0)
        follower.connection.connection_lost(None)
        assert leader.suspects.nodes == [FOLLOWER]
        assert follower.loop.timers == []

    leader.broker.run(fetch())


def nobody_may(leader: Leader) -> None:
    leader.broker.services.access.replace(Authorizer(acls=AclIndex([])))


def test_a_client_that_poses_as_a_follower_learns_nothing_and_moves_nothing(leader: Leader) -> None:
    """S13: else anybody could have records committed that nobody else has."""

    async def fetch() -> None:
        leader.append(b"secret")
        nobody_may(leader)
        partition = leader.topic.partition
        intruder = Follower(leader.topic)
        intruder.ask(partition.log.log_end_offset)
        (part,) = intruder._peer.decoded().responses[0].partitions
        assert part.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not part.records
        assert partition.log.high_watermark == 0
        assert leader.sessions.sessions == ()

    leader.broker.run(fetch())


def test_a_follower_that_waits_is_told_when_its_permission_goes(leader: Leader) -> None:
    async def fetch() -> None:
        follower = Follower(leader.topic)
        follower.ask(0)
        assert not follower.has_answer()
        nobody_may(leader)
        assert follower.refusal() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        leader.append(b"secret")
        await asyncio.sleep(0)
        assert not follower.has_answer()

    leader.broker.run(fetch())
