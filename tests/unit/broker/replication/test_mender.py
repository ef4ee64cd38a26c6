"""What a log lost comes back from a replica in sync, however many fetches that takes (F7)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.replication import mender as mender_module
from millrace.broker.replication.mender import Mender
from millrace.core.ids import NodeId
from millrace.log.config import LogConfig
from millrace.log.errors import DiskFailed
from millrace.log.partition.partition_log import PartitionLog
from millrace.log.repair.mending import damage_of
from millrace.sim.volume import SimVolume
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.fetch import FetchRequest
from tests.unit.log.support import PARTITION, TOPIC_ID, Disk, append, read_values

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=250)


class Replicas:
    """A broker whose log has a hole, and another one whose log has none."""

    def __init__(self) -> None:
        self.own = Disk(SimVolume(random.Random(1)), "/data", CONFIG)
        self.other = Disk(SimVolume(random.Random(1)), "/data", CONFIG)
        for disk in (self.own, self.other):
            for number in range(40):
                append(disk.log(), b"%02d" % number + bytes(50))
        self.fetches: list[int] = []
        self.errors: list[Exception] = []
        partition = SimpleNamespace(
            topic=PARTITION.topic, index=0, topic_id=TOPIC_ID, topic_partition=PARTITION, log=None
        )
        self.partition = cast("Any", partition)
        state = SimpleNamespace(isr=(NodeId(1), NodeId(2)), leader=NodeId(1))
        image = SimpleNamespace(partition=lambda topic, index: state)
        self.mender = Mender(
            lambda: cast("Any", image), cast("Any", [self.partition]), cast("Any", self), node_id=NodeId(1)
        )

    @property
    def log(self) -> PartitionLog:
        log = self.own.log()
        log.high_watermark = log.log_end_offset
        self.partition.log = log
        return log

    def start_again(self) -> PartitionLog:
        self.own.abandon()
        self.own.open()
        return self.log

    async def call(self, node_id: NodeId, api_key: int, version: int, request: FetchRequest) -> Any:
        """As the other broker answers."""
        assert node_id == 2
        if self.errors:
            raise self.errors.pop()
        asked = request.topics[0].partitions[0]
        self.fetches.append(asked.fetch_offset)
        log = self.other.log()
        if asked.fetch_offset < log.log_start_offset:
            found = SimpleNamespace(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, records=None)
        else:
            records = log.read(asked.fetch_offset, asked.partition_max_bytes, log.high_watermark, True).read()
            found = SimpleNamespace(error_code=0, records=records)
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[found])])


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    replicas = Replicas()
    yield replicas
    replicas.own.dispose()
    replicas.other.dispose()


@pytest.mark.parametrize("slack_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("lost", ["end", "all", "segment", "several"])
def test_what_is_missing_comes_back(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, lost: str, slack_bytes: int
) -> None:
    monkeypatch.setattr(mender_module, "SLACK_BYTES", slack_bytes)
    volume, segments = replicas.own.volume, replicas.log.segments
    wanted = read_values(replicas.log)
    assert len(segments) > 3
    size = segments[0].size_bytes
    if lost == "end":
        volume.file(segments[0].file.path).truncate(size // 12 * 5)
    elif lost == "all":
        volume.file(segments[0].file.path).truncate(0)
    else:
        for segment in segments[1 : 3 if lost == "several" else 2]:
            for suffix in (".log", ".index", ".timeindex"):
                volume.remove(segment.path(suffix))
    log = replicas.start_again()
    assert len(damage_of(log)) == 1
    replicas.own.run(replicas.mender.mend(replicas.partition))
    assert damage_of(log) == []
    assert replicas.mender.mended_count == len(replicas.fetches) > 0
    for _ in range(2):
        assert read_values(replicas.log) == wanted
        assert all(segment.size_bytes <= CONFIG.segment_bytes for segment in replicas.log.segments)
        replicas.start_again()


def test_a_replica_that_does_not_answer_is_asked_later(replicas: Replicas) -> None:
    replicas.own.volume.file(replicas.log.segments[0].file.path).truncate(0)
    log = replicas.start_again()
    replicas.errors.append(DiskFailed("read", "elsewhere", "no"))
    replicas.own.run(replicas.mender.mend(replicas.partition))
    assert len(damage_of(log)) == 1
    replicas.own.run(replicas.mender.mend(replicas.partition))
    assert damage_of(log) == []


def test_what_the_others_have_deleted_is_left_alone(replicas: Replicas) -> None:
    replicas.own.volume.file(replicas.log.segments[0].file.path).truncate(0)
    log = replicas.start_again()
    second = log.segments[1].base_offset
    replicas.other.run(replicas.other.log().delete_records_before(second - 2))
    replicas.own.run(replicas.mender.mend(replicas.partition))
    assert len(damage_of(log)) == 1
    # A follower is told its leader's start.
    replicas.own.run(log.delete_records_before(second - 2))
    replicas.own.run(replicas.mender.mend(replicas.partition))
    assert damage_of(log) == []
    assert [offset for offset, _ in read_values(log)] == list(range(second - 2, 40))
