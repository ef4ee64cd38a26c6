"""Whoever staged a batch is answered, whatever goes wrong with the others or with those who read."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.handlers.produce.answers import ProduceAnswer
from millrace.broker.handlers.produce.staging import Staging
from millrace.broker.network.wakeups import Wakeups
from millrace.core.ids import TopicPartition
from millrace.log.config import LogConfig
from millrace.log.segments import segment as segment_module
from millrace.replica.partition import Partition, TopicStats
from millrace.replica.waiting import Newest
from millrace.sim.volume import SimVolume
from millrace.wire.error_codes import ErrorCode
from tests.unit.log.support import NOW_MS, TOPIC_ID, Disk, batch_of


class Answer(ProduceAnswer):
    """On a connection of its own, which may be broken; with the frames that were completed there."""

    __slots__ = ("frames",)

    def __init__(
        self, loop: asyncio.AbstractEventLoop, partition: Partition, *, is_broken: bool = False
    ) -> None:
        def take_place(answer: Answer) -> None:
            answer.has_place = True

        def complete(_answer: Answer, frame: bytes) -> None:
            self.frames.append(frame)
            if is_broken:
                raise RuntimeError("a bug")

        connection = SimpleNamespace(
            loop=loop,
            ticks=lambda: 0.0,
            services=None,
            take_place=take_place,
            complete=complete,
            refused_batches=None,
        )
        stats = SimpleNamespace(record=lambda seconds: None, count_error=lambda code: None)
        route = SimpleNamespace(stats=stats, version=9, flexible_response=True)
        super().__init__(cast("Any", connection), cast("Any", route))
        self.correlation_id = 7
        self.started = 0.0
        self.topic_id = None
        self.partition = partition
        self.frames: list[bytes] = []


class BrokenReader:
    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        raise RuntimeError("a bug")

    def changed(self) -> None:
        return

    def permissions_changed(self) -> None:
        return


class Broker:
    """Partitions on one disk, each of which has its files, and a staging that writes for all."""

    def __init__(self) -> None:
        self.volume = SimVolume(random.Random(1))
        self.disk = Disk(self.volume, "/data", LogConfig(index_interval_bytes=0))
        self.staging = Staging(Wakeups())
        self.partitions = [self._lead(TopicPartition("orders", index)) for index in range(3)]

    def _lead(self, place: TopicPartition) -> Partition:
        partition = Partition(place, TOPIC_ID, self.disk.log(place), TopicStats(), lambda _: None)
        partition.lead(1, 0)
        partition.append(batch_of(b"first"), NOW_MS)
        partition.append(batch_of(b"second"), NOW_MS)
        return partition

    def produce(self, partition: Partition, *, is_broken: bool = False) -> Answer:
        answer = Answer(self.disk.loop, partition, is_broken=is_broken)
        self.staging.append(answer, partition, batch_of(b"x"), NOW_MS)
        assert answer.frames == [], "staged, not written"
        return answer

    def end_turn(self) -> None:
        self.disk.run(asyncio.sleep(0))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(segment_module, "STORE_AT_BYTES", 1)
    broker = Broker()
    yield broker
    broker.disk.dispose()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO], ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("suffix", [".index", ".log"])
def test_a_disk_that_refuses_leaves_nobody_unanswered(broker: Broker, suffix: str, code: int) -> None:
    answers = [broker.produce(partition) for partition in broker.partitions for _ in range(3)]
    broker.volume.fail("write", code, path_contains=suffix)
    broker.end_turn()
    assert [len(answer.frames) for answer in answers] == [1] * 9


def test_what_follows_staged_batches_that_were_not_written_waits_for_them(broker: Broker) -> None:
    partition = broker.partitions[0]
    place = partition.topic, partition.index
    batches = [batch_of(b"x", producer_id=7, sequence=sequence) for sequence in range(3)]
    answers = [Answer(broker.disk.loop, partition) for _ in batches]
    for answer, batch in zip(answers[:2], batches, strict=False):
        broker.staging.append(answer, partition, batch, NOW_MS)
    broker.volume.fail("write", errno.EMFILE, path_contains=".log")
    broker.end_turn()
    refused = answers[0].connection.refused_batches
    assert refused is not None
    assert refused.code_behind(place, partition, batches[2]) == ErrorCode.KAFKA_STORAGE_ERROR
    assert refused.code_behind(place, partition, batches[0]) is None


def test_an_answer_that_fails_leaves_nobody_else_unanswered(broker: Broker) -> None:
    answers = [
        broker.produce(partition, is_broken=number == 0)
        for partition in broker.partitions
        for number in range(3)
    ]
    broker.end_turn()
    assert [len(answer.frames) for answer in answers] == [1] * 9


def test_a_reader_that_fails_keeps_no_producer_from_its_answer(broker: Broker) -> None:
    broker.partitions[1].fetch_waiters[BrokenReader()] = None
    answers = [broker.produce(partition) for partition in broker.partitions for _ in range(3)]
    broker.end_turn()
    assert [len(answer.frames) for answer in answers] == [1] * 9
