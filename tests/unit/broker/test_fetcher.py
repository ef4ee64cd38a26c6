"""A follower's side of replication: which partitions are named to the leader and which are forgotten, when
work on their logs fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from millrace.broker.fetcher import RETRY_MS, Fetchers, FetcherSettings
from millrace.broker.peers import PeerConnection, Peers
from millrace.broker.throttles import FollowerThrottles
from millrace.core.ids import NodeId
from millrace.log.config import LogConfig
from millrace.log.errors import StorageError
from millrace.log.partition_log import PartitionLog
from millrace.metadata.image import EMPTY
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from millrace.wire import fetch_codec
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import PartitionData, TopicData
from millrace.wire.replica_fetch_codec import VERSION
from tests.unit.log.support import PARTITION, TOPIC_ID, Disk
from tests.unit.metadata.virtual_time import run_virtually

ME, LEADER = NodeId(1), NodeId(2)
LEADER_EPOCH = 5
SESSION_ID = 7


class Leader:
    """In the place of the connections to peers: keeps what it is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.on_lost: Callable[[PeerConnection], None] | None = None
        self.named: list[list[int]] = []
        """The partitions of each request."""
        self.forgotten: list[list[int]] = []
        self._waiting: list[Callable[[memoryview], None]] = []

    async def open(self, _node_id: NodeId) -> PeerConnection:
        return cast("PeerConnection", self)

    def abort(self) -> None:
        self._waiting.clear()

    def send(self, _key: int, version: int, body: bytes, answered: Callable[[memoryview], None]) -> None:
        request = fetch_codec.decode_request(memoryview(body), 0, len(body), version)
        self.named.append([asked.partition for topic in request.topics for asked in topic.partitions])
        self.forgotten.append([index for topic in request.forgotten for index in topic.partitions])
        self._waiting.append(answered)

    def answer(self, *partitions: PartitionData) -> None:
        """To the request that has waited longest."""
        topics = [TopicData("", TOPIC_ID, list(partitions))] if partitions else []
        chunks = fetch_codec.encode_response(topics, SESSION_ID, VERSION)
        body = b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
        self._waiting.pop(0)(memoryview(body))


class Follower:
    def __init__(self) -> None:
        self.disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig())
        self.partitions = [self._partition(index) for index in range(2)]
        self.leader = Leader()
        self.fetchers = Fetchers(
            cast("Peers", self.leader),
            node_id=ME,
            broker_epoch=lambda: 1,
            settings=FetcherSettings,
            throttles=FollowerThrottles(lambda: EMPTY, ME),
            chance=random.Random(2),
        )

    def _partition(self, index: int) -> Partition:
        topic_partition = PARTITION._replace(partition=index)
        log = self.disk.log(topic_partition)
        partition = Partition(topic_partition, TOPIC_ID, log, TopicStats(), lambda _: None)
        partition.follow(LEADER, LEADER_EPOCH)
        return partition

    async def start(self) -> None:
        self.fetchers.start()
        for partition in self.partitions:
            self.fetchers.follow(partition)
        await asyncio.sleep(0)
        assert self.leader.named == [[0, 1]]


@pytest.fixture
def follower() -> Iterator[Follower]:
    follower = Follower()
    yield follower
    follower.disk.dispose()


def starts_elsewhere(index: int) -> PartitionData:
    """What the leader says when its log begins behind the follower's end: the follower starts over."""
    return PartitionData(index, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, 100)


def test_a_partition_whose_log_failed_in_an_unexpected_way_is_fetched_again_later(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would ever ask for it again: it would stay out of sync until a restart."""

    async def broken(_log: PartitionLog, _offset: int) -> None:
        raise RuntimeError("nobody expected this")

    async def body() -> None:
        leader = follower.leader
        await follower.start()
        leader.answer(starts_elsewhere(0))
        await asyncio.sleep(RETRY_MS / 2000)
        leader.answer()
        assert leader.named[1:] == [[], []], "not at once"
        await asyncio.sleep(RETRY_MS / 1000)
        assert leader.named[3:] == [[0]]
        follower.fetchers.stop()

    monkeypatch.setattr(PartitionLog, "truncate_fully_and_start_at", broken)
    run_virtually(body())
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "orders-0" in record.getMessage()
    assert isinstance(record.exc_info and record.exc_info[1], RuntimeError)


def test_what_fails_for_a_partition_that_was_let_go_does_not_concern_one_that_is_followed_again(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader was told to forget what it had just been asked for, and sent nothing of it any more."""
    failing = asyncio.Event()

    async def slow_and_failing(_log: PartitionLog, _offset: int) -> None:
        await failing.wait()
        raise StorageError("cut", "orders-0", "the disk is tired")

    async def body() -> None:
        leader, partition = follower.leader, follower.partitions[0]
        await follower.start()
        leader.answer(starts_elsewhere(0))
        await asyncio.sleep(0)
        follower.fetchers.unfollow(partition)
        follower.fetchers.follow(partition)
        assert leader.named[1:] == [[], [0]]
        failing.set()
        await asyncio.sleep(1.0)
        leader.answer()
        leader.answer()
        assert len(leader.named) == 4
        assert not any(leader.forgotten)
        follower.fetchers.stop()

    monkeypatch.setattr(PartitionLog, "truncate_fully_and_start_at", slow_and_failing)
    run_virtually(body())
