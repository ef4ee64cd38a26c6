"""Lag in messages and in time is exact: from the high watermark and the first unread record itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millrace.core.ids import TopicPartition
from millrace.groups import lag as lag_module
from millrace.groups.lag import Lag, LagReader
from millrace.log.config import LogConfig
from millrace.log.disk.volume import DiskVolume
from millrace.replica.partition import Partition, TopicStats
from millrace.replica.partitions import Partitions
from millrace.wire.compression import Codec
from millrace.wire.records import Record, build_batch
from tests.unit.log.support import NOW_MS, TOPIC_ID, Disk


class World:
    def __init__(self, path: Path, config: LogConfig | None = None) -> None:
        self.disk = Disk(DiskVolume(), str(path / "data"), config)
        self.partitions = Partitions()
        name = TopicPartition("t", 0)
        self.partition = Partition(
            name, TOPIC_ID, self.disk.log(name), TopicStats(), flush_wanted=lambda _: None
        )
        self.partitions.add(self.partition)
        self.partition.lead(1, 0)
        self.reader = LagReader(self.partitions, self.disk.clock)

    def append(self, *ages_ms: int, codec: Codec = Codec.NONE) -> None:
        """One batch whose records are so old."""
        records = [Record(number, NOW_MS - age, None, b"x") for number, age in enumerate(ages_ms)]
        batch = build_batch(records, codec=codec)
        self.partition.append(memoryview(bytearray(batch)), NOW_MS)

    def lag(self, offset: int, partition: int = 0) -> Lag | None:
        return self.lags([("t", partition, offset)])[0]

    def lags(self, committed: Sequence[tuple[str, int, int]]) -> list[Lag | None]:
        return self.disk.run(self.reader.measure(committed))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.disk.dispose()


def test_a_group_that_has_read_everything_has_no_lag(world: World) -> None:
    assert world.lag(0) == Lag(0, 0, 0)
    world.append(9_000, 8_000)
    assert world.lag(2) == Lag(2, 0, 0)


def test_the_age_is_that_of_the_first_unread_record(world: World) -> None:
    world.append(9_000, 8_000)
    world.append(5_000, 4_000)
    assert world.lag(0) == Lag(4, 4, 9_000)
    assert world.lag(2) == Lag(4, 2, 5_000)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_group_that_stopped_inside_a_batch_is_measured_too(world: World, codec: Codec) -> None:
    world.append(9_000, 8_000, 7_000, codec=codec)
    assert world.lag(1) == Lag(3, 2, 8_000)
    assert world.lag(2) == Lag(3, 1, 7_000)


def test_the_brokers_time_counts_where_the_topic_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, LogConfig(timestamp_log_append=True))
    world.append(9_000)
    world.disk.clock.now_ms += 3_000
    assert world.lag(0) == Lag(1, 1, 3_000)
    world.disk.dispose()


def test_records_without_a_time_have_no_age_and_those_of_the_future_none_yet(world: World) -> None:
    world.append(-60_000)
    assert world.lag(0) == Lag(1, 1, 0)
    records = [Record(0, -1, None, b"x")]
    world.partition.append(memoryview(bytearray(build_batch(records))), NOW_MS)
    assert world.lag(1) == Lag(2, 1, None)


def test_what_was_deleted_before_a_group_read_it_counts_as_lag_but_has_no_age(world: World) -> None:
    world.append(9_000, 8_000)
    world.append(5_000)
    world.disk.run(world.partition.log.delete_records_before(2))
    assert world.lag(0) == Lag(3, 3, 5_000)


def test_an_offset_beyond_the_end_is_no_negative_lag(world: World) -> None:
    world.append(9_000)
    assert world.lag(7) == Lag(1, 0, 0)


def test_partitions_of_other_brokers_are_left_out(world: World) -> None:
    assert world.lag(0, partition=5) is None


def test_a_group_that_stands_still_is_not_read_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(9_000, 8_000)
    assert world.lag(1) == Lag(2, 1, 8_000)
    monkeypatch.setattr(lag_module, "_read_timestamps", None)
    world.disk.clock.now_ms += 1_000
    world.append(1_000)
    assert world.lag(1) == Lag(3, 2, 9_000)


def test_many_groups_are_measured_at_once(world: World) -> None:
    world.append(9_000, 8_000)
    world.append(5_000)
    lags = world.lags([("t", 0, offset) for offset in (0, 1, 2, 3)] * 300)
    assert lags[:4] == [Lag(3, 3, 9_000), Lag(3, 2, 8_000), Lag(3, 1, 5_000), Lag(3, 0, 0)]
    assert len(lags) == 1_200
