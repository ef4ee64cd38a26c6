"""A follower's side of replication: which partitions are named to the leader and which are forgotten, when
work on their logs fails or comes to nothing."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from millrace.broker.replication.fetcher import RETRY_MS, Fetchers, FetcherSettings
from millrace.broker.replication.followed import REPAIRS_IN_A_ROW_MAX
from millrace.broker.replication.peers import PeerConnection, Peers
from millrace.broker.replication.throttles import FollowerThrottles
from millrace.core.ids import NodeId
from millrace.log.config import LogConfig
from millrace.log.errors import StorageError, TooManyOpenFiles
from millrace.log.partition import truncation
from millrace.log.partition.partition_log import PartitionLog
from millrace.metadata.image import EMPTY
from millrace.replica.partition import Partition, TopicStats
from millrace.sim.volume import SimVolume
from millrace.wire import fetch_codec
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import PartitionData, TopicData
from millrace.wire.replica_fetch_codec import VERSION
from tests.unit.log.support import PARTITION, TOPIC_ID, Disk, batch_of
from tests.unit.metadata.virtual_time import run_virtually

ME, LEADER = NodeId(1), NodeId(2)
LEADER_EPOCH = 5
SESSION_ID = 7
MADE_RECORDS = bytes(batch_of(b"value"))


class MadeSlice:
    """In the place of a slice of a file."""

    size_bytes = len(MADE_RECORDS)

    def is_cold(self) -> bool:
        return False

    def read(self) -> bytes:
        return MADE_RECORDS


class Leader:
    """In the place of the connections to peers: keeps what it is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.on_lost: Callable[[PeerConnection], None] | None = None
        self.named: list[list[int]] = []
        """The partitions of each request."""
        self.offsets: dict[int, list[int]] = {}
        """Where each partition was said to end, in the order of the requests."""
        self.forgotten: list[list[int]] = []
        self._waiting: list[Callable[[memoryview], None]] = []
        self._answered_count = 0

    async def open(self, _node_id: NodeId) -> PeerConnection:
        return cast("PeerConnection", self)

    def abort(self) -> None:
        self._waiting.clear()

    def send(self, _key: int, version: int, body: bytes, answered: Callable[[memoryview], None]) -> None:
        request = fetch_codec.decode_request(memoryview(body), 0, len(body), version)
        self.named.append([asked.partition for topic in request.topics for asked in topic.partitions])
        for topic in request.topics:
            for asked in topic.partitions:
                self.offsets.setdefault(asked.partition, []).append(asked.fetch_offset)
        self.forgotten.append([index for topic in request.forgotten for index in topic.partitions])
        self._waiting.append(answered)

    @property
    def is_asked(self) -> bool:
        return bool(self._waiting)

    @property
    def asked_first(self) -> list[int]:
        """The partitions of the request that has waited longest."""
        return self.named[self._answered_count]

    def answer(self, *partitions: PartitionData) -> None:
        """To the request that has waited longest."""
        topics = [TopicData("", TOPIC_ID, list(partitions))] if partitions else []
        chunks = fetch_codec.encode_response(topics, SESSION_ID, VERSION)
        body = b"".join(chunk if isinstance(chunk, bytes) else MADE_RECORDS for chunk in chunks)
        self._answered_count += 1
        self._waiting.pop(0)(memoryview(body))

    async def answer_for_seconds(self, seconds: int) -> None:
        """That there is nothing new."""
        for _ in range(10 * seconds):
            if self.is_asked:
                self.answer()
            await asyncio.sleep(0.1)


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


def starts_elsewhere(index: int, start_offset: int = 100) -> PartitionData:
    """What the leader says when its log begins behind the follower's end: the follower starts over."""
    return PartitionData(index, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, start_offset)


def records_of(index: int) -> PartitionData:
    return PartitionData(index, 0, 1, 1, 0, records=MadeSlice())


async def ask_for_seconds(follower: Follower, seconds: int, answer_of: Callable[[int], PartitionData]) -> int:
    """How often partitions were asked for while the leader answers every millisecond."""
    leader = follower.leader
    await follower.start()
    for _ in range(1000 * seconds):
        if leader.is_asked:
            leader.answer(*(answer_of(index) for index in leader.asked_first))
        await asyncio.sleep(0.001)
    follower.fetchers.stop()
    return sum(len(named) for named in leader.named)


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


def test_what_changes_nothing_is_not_asked_for_again_at_once(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: two brokers that ask and answer in vain would do nothing else."""
    monkeypatch.setattr(Partition, "take_from_leader", lambda *_: None)

    questions_count = run_virtually(ask_for_seconds(follower, 10, records_of))
    assert 20 <= questions_count <= 50, "often at first, for two partitions, then once a second"


def test_a_circle_of_repairs_is_walked_slowly(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that names another start each time it is asked, and never has a record there."""

    async def without_disk(log: PartitionLog, offset: int) -> None:
        truncation.truncate_fully_and_start_at(log, offset)

    monkeypatch.setattr(PartitionLog, "truncate_fully_and_start_at", without_disk)

    starts = itertools.cycle((100, 200, 300))
    questions_count = run_virtually(
        ask_for_seconds(follower, 10, lambda index: starts_elsewhere(index, next(starts)))
    )
    assert 2 * REPAIRS_IN_A_ROW_MAX <= questions_count <= 2 * (REPAIRS_IN_A_ROW_MAX + 20)


@pytest.mark.parametrize("is_led_by_another", [False, True])
def test_a_leader_hears_of_no_record_that_is_not_on_the_disk(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, is_led_by_another: bool
) -> None:
    """With flush.messages=1 the end that a follower names counts as safe there. After a flush that failed for
    want of descriptors, or in a new leader's term, it was named all the same."""
    has_descriptors = False

    async def flush(log: PartitionLog) -> None:
        await asyncio.sleep(0.001)
        if not has_descriptors:
            raise TooManyOpenFiles("open", log.path, "Too many open files")
        log.flushed_offset = log.log_end_offset

    async def body() -> None:
        nonlocal has_descriptors
        leader, partition = follower.leader, follower.partitions[0]
        partition.log.set_config(LogConfig(flush_messages=1))
        await follower.start()
        leader.answer(records_of(0))
        assert partition.log.log_end_offset == 1
        if is_led_by_another:
            partition.follow(NodeId(LEADER + 1), LEADER_EPOCH + 1)
            follower.fetchers.follow(partition)
        await leader.answer_for_seconds(10)
        assert leader.offsets[0] == [0]
        has_descriptors = True
        await leader.answer_for_seconds(2)
        assert leader.offsets[0] == [0, 1]
        follower.fetchers.stop()

    monkeypatch.setattr(PartitionLog, "flush", flush)
    run_virtually(body())
