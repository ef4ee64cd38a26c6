"""Where batches of a stream start and end, on topics that grow with every question that is asked about them.

Spark is played by `Query`, which asks the reader as Spark's MicroBatchExecution does: for the first offset
again and again until a batch is committed, with nothing but the offset log kept through a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.client.broker_client import BrokerClient, ListedOffset, PartitionInfo, TopicInfo
from millrace.core.ids import TopicId, TopicPartition, format_topic_id
from millrace.core.override import override
from millrace.pipeline.errors import DataLost
from millrace.pipeline.source.options import SourceOptions, read_options
from millrace.pipeline.source.reader import RangeTask
from millrace.pipeline.source.stream import MillraceStreamReader

T = TypeVar("T")

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LATER = TopicPartition("orders-later", 0)


@dataclass
class Log:
    start: int = 0
    end: int = 0
    epoch: int = 0
    epoch_ends: dict[int, int] = field(default_factory=dict)


class Brokers:
    """As much of a cluster as the stream reader asks for; each answer finds `growth` more records."""

    def __init__(self, logs: Mapping[TopicPartition, Log], growth: int = 0) -> None:
        self.logs = dict(logs)
        self.growth = growth
        self.ids = {each.topic: TopicId(each.topic.encode().ljust(16)) for each in logs}
        self.committed: list[dict[TopicPartition, int]] = []

    def grow(self) -> None:
        for log in self.logs.values():
            log.end += self.growth

    def close(self) -> None:
        pass

    def retrying(self, operation: Callable[[], T]) -> T:
        return operation()

    def metadata(self, topics: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        self.grow()
        found: dict[str, TopicInfo] = {}
        for name in dict.fromkeys(each.topic for each in self.logs):
            if topics is None or name in topics:
                numbers = [each.partition for each in self.logs if each.topic == name]
                partitions = {number: PartitionInfo(1, 0) for number in numbers}
                topic_id = self.ids.setdefault(name, TopicId(name.encode().ljust(16)))
                found[name] = TopicInfo(name, topic_id, False, partitions)
        return found

    def list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: int = 1
    ) -> dict[TopicPartition, ListedOffset]:
        self.grow()
        return {
            each: ListedOffset(
                self.logs[each].start if moment == -2 else self.logs[each].end, -1, self.logs[each].epoch
            )
            for each, moment in asked.items()
        }

    def epoch_end_offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        self.grow()
        return {
            each: (epoch, self.logs[each].epoch_ends.get(epoch, self.logs[each].end))
            for each, epoch in asked.items()
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.committed.append(dict(offsets))


class Read(NamedTuple):
    start: int
    end: int


class Query:
    """One query's checkpoint and sink, with a reader that dies with the driver."""

    def __init__(self, brokers: Brokers, **options: str) -> None:
        self.brokers = brokers
        self.offsets: list[str] = []
        self.commits = 0
        self.read: dict[TopicPartition, list[Read]] = {}
        self.restart(options)

    def restart(self, options: Mapping[str, str] | None = None, *, available_now: bool = False) -> None:
        given = {"bootstrap.servers": "fake:1", **(options or {})}
        if "subscribePattern" not in given:
            given["subscribe"] = "orders"
        brokers = self.brokers

        class Faked(SourceOptions):
            @override
            def client(self) -> BrokerClient:
                return brokers  # type: ignore[return-value]

        read = read_options(given, streaming=True)
        self.reader = MillraceStreamReader(
            Faked(**{name: getattr(read, name) for name in SourceOptions.__dataclass_fields__}), ("offset",)
        )
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def _start(self, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = (
            json.loads(self.offsets[batch - 1])
            if batch
            else json.loads(json.dumps(self.reader.initialOffset()))
        )
        return found

    def plan(self) -> bool:
        """Write the next batch into the offset log, if there is one."""
        assert len(self.offsets) == self.commits
        end = json.dumps(self.reader.latestOffset(self._start(self.commits), ReadAllAvailable()))
        if self.offsets and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def planned(self) -> dict[TopicPartition, Read]:
        """What the batch that is written down would read."""
        end = json.loads(self.offsets[self.commits])
        tasks = self.reader.partitions(self._start(self.commits), end)
        found: dict[TopicPartition, Read] = {}
        for task in tasks:
            assert isinstance(task, RangeTask)
            found[task.range.partition] = Read(task.range.start, task.range.end)
        return found

    def run(self) -> None:
        for partition, read in self.planned().items():
            self.read.setdefault(partition, []).append(read)
        self.commits += 1

    def trigger(self, times: int = 1) -> None:
        for _ in range(times):
            if self.plan():
                self.run()

    def assert_without_gap(self, partition: TopicPartition, start: int) -> int:
        """Every record from `start` on was read once; returns where reading ended."""
        place = start
        for read in self.read.get(partition, []):
            assert read.start == place, self.read
            place = read.end
        return place


def test_a_query_from_the_end_of_a_live_topic_reads_on_from_where_it_began() -> None:
    brokers = Brokers({P0: Log(end=100), P1: Log(end=900)}, growth=7)
    query = Query(brokers)
    query.trigger(3)
    for partition, before in ((P0, 100), (P1, 900)):
        first = query.read[partition][0]
        assert before < first.start <= before + 7 * 2
        assert first.end > first.start, "what came while the batch was planned belongs to it"
        assert query.assert_without_gap(partition, first.start) > first.end


@pytest.mark.parametrize("option", [{}, {"startingOffsets": '{"orders": {"0": -1}}'}])
def test_a_first_batch_that_is_repeated_after_a_crash_has_the_same_records(option: dict[str, str]) -> None:
    brokers = Brokers({P0: Log(end=100)}, growth=5)
    query = Query(brokers, **option)
    assert query.plan()
    planned = query.planned()
    for _ in range(3):
        brokers.growth += 100
        query.restart(option)
        assert query.planned() == planned
    query.run()
    query.trigger(2)
    query.assert_without_gap(P0, planned[P0].start)


def test_a_query_asked_again_before_its_first_batch_is_written_down_begins_at_the_same_place() -> None:
    brokers = Brokers({P0: Log(end=100)}, growth=5)
    query = Query(brokers)
    starts = []
    for _ in range(3):
        assert query.plan()
        starts.append(query.planned()[P0].start)
        query.offsets.clear()
    assert starts == [starts[0]] * 3


def test_what_comes_while_a_query_is_down_before_its_first_record_is_read() -> None:
    brokers = Brokers({P0: Log(end=100)})
    query = Query(brokers)
    query.trigger(2)
    assert query.commits == 1, "a batch without records writes down where the query began"
    assert query.read == {}
    brokers.logs[P0].end = 120
    query.restart()
    query.trigger()
    assert query.read == {P0: [Read(100, 120)]}


def test_a_topic_that_appears_after_a_query_without_topics_began_is_read_whole() -> None:
    brokers = Brokers({TopicPartition("other", 0): Log(end=5)})
    query = Query(brokers, subscribePattern="orders.*")
    query.trigger()
    brokers.logs[LATER] = Log(end=30)
    query.restart({"subscribePattern": "orders.*"})
    query.trigger()
    assert query.read == {LATER: [Read(0, 30)]}


def test_a_query_that_waits_for_many_records_begins_at_once() -> None:
    brokers = Brokers({P0: Log(end=100)}, growth=1)
    query = Query(brokers, minOffsetsPerTrigger="50")
    query.trigger()
    assert query.read == {}
    brokers.logs[P0].end += 60
    query.restart({"minOffsetsPerTrigger": "50"})
    query.trigger()
    assert 100 < query.read[P0][0].start <= 103


def test_the_start_of_a_new_partition_is_kept_with_the_batch_that_has_it_first() -> None:
    brokers = Brokers({P0: Log(end=10)})
    query = Query(brokers, startingOffsets="earliest")
    query.trigger()
    brokers.logs[P1] = Log(end=40)
    assert query.plan()
    brokers.logs[P1].start = 25
    query.restart({"startingOffsets": "earliest"})
    # The task asks for 0 and is told that it is gone: the loss is noticed.
    assert query.planned() == {P1: Read(0, 40)}
    query.run()
    brokers.logs[P1].end = 50
    query.trigger()
    assert query.read[P1] == [Read(0, 40), Read(40, 50)]


def test_a_new_partition_whose_first_records_are_gone_already_is_a_loss() -> None:
    brokers = Brokers({P0: Log(end=10)})
    query = Query(brokers)
    query.trigger()
    brokers.logs[P1] = Log(start=3, end=40)
    with pytest.raises(DataLost, match=r"orders-1 was added to its topic, and its records before 3 are gone"):
        query.trigger()
    query.restart({"failOnDataLoss": "false"})
    query.trigger()
    assert query.read[P1] == [Read(3, 40)]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_ends_before_the_place_read_up_to_is_a_loss(available_now: bool) -> None:
    # A broker that tells no epochs.
    brokers = Brokers({P0: Log(end=100, epoch=-1)})
    query = Query(brokers, startingOffsets="earliest")
    query.trigger()
    brokers.logs[P0].end = 60
    query.restart(available_now=available_now)
    with pytest.raises(DataLost, match="was read up to 100, but ends at 60 now"):
        query.trigger()
    query.restart({"failOnDataLoss": "false"}, available_now=available_now)
    query.trigger()
    brokers.logs[P0].end = 80
    query.restart({"failOnDataLoss": "false"}, available_now=available_now)
    query.trigger()
    assert query.read[P0] == [Read(0, 100), Read(60, 80)]


def test_a_query_for_what_is_there_now_from_the_end_reads_what_comes_before_its_next_run() -> None:
    brokers = Brokers({P0: Log(end=100)}, growth=3)
    query = Query(brokers)
    query.restart(available_now=True)
    query.trigger()
    began = json.loads(query.offsets[0])["orders"]["partitions"]["0"]["offset"]
    brokers.logs[P0].end += 500
    query.restart(available_now=True)
    query.trigger(2)
    assert query.assert_without_gap(P0, began) > began + 500


def test_a_repeated_batch_of_a_log_that_was_cut_and_has_grown_again_is_a_loss() -> None:
    brokers = Brokers({P0: Log(end=100)})
    query = Query(brokers, startingOffsets="earliest")
    assert query.plan()
    brokers.logs[P0] = Log(end=200, epoch=1, epoch_ends={0: 70})
    query.restart({"startingOffsets": "earliest"})
    with pytest.raises(DataLost, match="that epoch ends at 70 now"):
        query.planned()


def test_after_a_loss_that_is_borne_reading_goes_on_where_the_log_was_cut() -> None:
    brokers = Brokers({P0: Log(end=100)})
    query = Query(brokers, startingOffsets="earliest")
    query.trigger()
    brokers.logs[P0] = Log(end=150, epoch=1, epoch_ends={0: 70})
    query.restart({"failOnDataLoss": "false"})
    query.trigger()
    assert query.read[P0] == [Read(0, 100), Read(70, 150)]
    query.restart()
    query.trigger()


def test_a_repeated_batch_of_a_topic_that_is_gone_is_a_loss() -> None:
    brokers = Brokers({P0: Log(end=100), TopicPartition("other", 0): Log()})
    query = Query(brokers, startingOffsets="earliest")
    assert query.plan()
    del brokers.logs[P0]
    query.restart({"startingOffsets": "earliest"})
    with pytest.raises(DataLost, match="does not exist any more"):
        query.planned()


def test_progress_is_committed_from_the_beginning_on() -> None:
    brokers = Brokers({P0: Log(end=100)})
    query = Query(brokers, commitGroup="g")
    query.trigger()
    assert brokers.committed == [{P0: 100}]


def test_progress_in_a_topic_that_is_gone_is_not_committed() -> None:
    other = TopicPartition("orders-other", 0)
    brokers = Brokers({P0: Log(end=100), other: Log(end=50)})
    options = {"subscribePattern": "orders.*", "failOnDataLoss": "false", "commitGroup": "g"}
    query = Query(brokers, **options)
    query.trigger()
    assert brokers.committed == [{P0: 100, other: 50}]
    del brokers.logs[other]
    brokers.logs[P0].end = 110
    query.trigger()
    brokers.logs[P0].end = 120
    query.trigger()
    assert brokers.committed[1:] == [{P0: 100}, {P0: 110}]


class TestCheckpointsOfOlderVersions:
    """Their ends of batches did not say where the batch starts."""

    def test_a_first_batch_from_the_end_that_failed_for_ever_goes_on_behind_it(self) -> None:
        brokers = Brokers({P0: Log(end=500)}, growth=5)
        query = Query(brokers)
        query.offsets = [_old_offset(brokers, {P0: 120})]
        assert query.planned() == {}
        query.run()
        query.trigger()
        assert query.read[P0][0].start == 120

    def test_a_first_batch_with_a_start_that_is_found_again_reads_its_records(self) -> None:
        brokers = Brokers({P0: Log(start=10, end=500)}, growth=5)
        query = Query(brokers, startingOffsets="earliest")
        query.offsets = [_old_offset(brokers, {P0: 120})]
        assert query.planned() == {P0: Read(10, 120)}

    def test_records_of_such_a_batch_that_are_gone_are_a_loss(self) -> None:
        brokers = Brokers({P0: Log(start=200, end=500)}, growth=5)
        query = Query(brokers, startingOffsets="earliest")
        query.offsets = [_old_offset(brokers, {P0: 120})]
        with pytest.raises(DataLost, match="was read up to 200, but ends at 120"):
            query.planned()

    def test_a_later_batch_with_a_new_partition_reads_it_whole(self) -> None:
        brokers = Brokers({P0: Log(end=500), P1: Log(end=40)})
        query = Query(brokers)
        query.offsets = [_old_offset(brokers, {P0: 120}), _old_offset(brokers, {P0: 130, P1: 40})]
        query.commits = 1
        assert query.planned() == {P0: Read(120, 130), P1: Read(0, 40)}


def _old_offset(brokers: Brokers, ends: Mapping[TopicPartition, int]) -> str:
    partitions = {str(each.partition): {"offset": end, "epoch": 0} for each, end in ends.items()}
    return json.dumps({"orders": {"id": format_topic_id(brokers.ids["orders"]), "partitions": partitions}})
