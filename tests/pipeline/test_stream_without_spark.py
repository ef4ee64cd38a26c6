"""The stream reader and its tasks against a real broker: what happens to a topic between two batches.

`Query` plays Spark: it plans a batch, keeps the text of its end, and reads it with the reader's tasks. A
reader dies with `restart`; what it remembered is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.client.broker_client import BrokerClient
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import DataLost
from millrace.pipeline.source.options import read_options
from millrace.pipeline.source.stream import MillraceStreamReader
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.topics import admin_client, create_topic, unique_name
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.source_clients import by_client, producer, send

Places = list[tuple[int, int]]


class Query:
    def __init__(self, broker: MillraceProcess, **options: str) -> None:
        self._options = {"bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest", **options}
        self.offsets: list[str] = []
        self.batches: list[Places] = []
        self.reader = self._reader()

    def restart(self, *, available_now: bool = False, **options: str) -> None:
        self._options |= options
        self.reader.stop()
        self.reader = self._reader()
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def _reader(self) -> MillraceStreamReader:
        return MillraceStreamReader(read_options(self._options, streaming=True), ("partition", "offset"))

    def _start(self) -> dict[str, Any]:
        kept = (
            self.offsets[len(self.batches) - 1] if self.batches else json.dumps(self.reader.initialOffset())
        )
        found: dict[str, Any] = json.loads(kept)
        return found

    def plan(self) -> bool:
        """Whether there is a new batch; it is written down then."""
        start = self._start()
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(start, limit))
        if end == json.dumps(start):
            return False
        self.offsets.append(end)
        return True

    def read(self) -> Places:
        """The batch that was planned last, in the order of partitions and offsets."""
        tasks = self.reader.partitions(self._start(), json.loads(self.offsets[len(self.batches)]))
        rows = [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]
        self.batches.append(sorted((row["partition"], row["offset"]) for row in rows))
        return self.batches[-1]

    def trigger(self) -> Places:
        return self.read() if self.plan() else []

    def drain(self) -> None:
        while self.plan():
            self.read()

    @property
    def places(self) -> Places:
        return sorted(place for batch in self.batches for place in batch)


MakeQuery = Callable[..., Query]


@pytest.fixture
def make_query(broker: MillraceProcess) -> Iterator[MakeQuery]:
    """Makes queries that are over when the test is; of another broker than the shared one by `of`."""
    made: list[Query] = []

    def make(of: MillraceProcess = broker, **options: str) -> Query:
        made.append(Query(of, **options))
        return made[-1]

    yield make
    for query in made:
        query.reader.stop()


def offsets(partition: int, *spans: range) -> Places:
    return [(partition, offset) for span in spans for offset in span]


def delete_up_to(bootstrap: str, topic: str, offset: int) -> None:
    admin = admin_client(bootstrap)
    for outcome in admin.delete_records([ClientPartition(topic, 0, offset)]).values():
        outcome.result(30)


def recreate(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)
    admin.delete_topics([topic])[topic].result(30)
    create_topic(bootstrap, topic)


def test_limits_hold_from_the_first_batch_of_a_query_that_began_at_the_end(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(partitions=2, stem="limited")
    for partition in (0, 1):
        send(broker.bootstrap, topic, [b"old"] * 50, partition)
    query = make_query(subscribe=topic, startingOffsets="latest", maxOffsetsPerTrigger="10")
    assert query.trigger() == []
    assert len(query.batches) == 1
    for partition, count in ((0, 40), (1, 10)):
        send(broker.bootstrap, topic, [b"new"] * count, partition)
    query.restart()
    query.drain()
    assert all(len(batch) <= 11 for batch in query.batches)
    assert query.places == offsets(0, range(50, 90)) + offsets(1, range(50, 60))


def test_bytes_are_limited_after_a_restart_in_the_middle(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(stem="limited-bytes")
    send(broker.bootstrap, topic, [bytes(1_000)] * 100, batch_num_messages=5)
    query = make_query(subscribe=topic, maxBytesPerTrigger="20000")
    query.trigger()
    query.plan()
    query.restart()
    query.read()
    query.restart()
    query.drain()
    assert query.places == offsets(0, range(100))
    assert all(len(batch) <= 25 for batch in query.batches)


def test_a_partition_that_is_added_between_two_batches_is_read_whole(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(stem="widened")
    query = make_query(subscribe=topic, startingOffsets="latest", maxOffsetsPerTrigger="7")
    send(broker.bootstrap, topic, [b"x"] * 3)
    query.trigger()
    admin = admin_client(broker.bootstrap)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    send(broker.bootstrap, topic, [b"x"] * 20, 1)
    # Whether it is seen by a reader that runs or by the next one, killed in between or not.
    query.plan()
    query.restart()
    query.read()
    query.drain()
    assert offsets(1, range(20)) == [place for place in query.places if place[0] == 1]


def test_a_log_that_was_emptied_is_a_loss_of_what_was_not_read(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(stem="emptied")
    send(broker.bootstrap, topic, [b"x"] * 10)
    query = make_query(subscribe=topic)
    query.trigger()
    # What was read may go.
    delete_up_to(broker.bootstrap, topic, 10)
    query.restart()
    assert query.trigger() == []
    send(broker.bootstrap, topic, [b"x"] * 10)
    delete_up_to(broker.bootstrap, topic, 20)
    query.restart()
    query.plan()
    with pytest.raises(DataLost, match=r"offsets 10 to 19 are gone, its log starts at 20"):
        query.read()
    query.restart(failOnDataLoss="false")
    assert query.read() == []
    send(broker.bootstrap, topic, [b"x"] * 5)
    assert query.trigger() == offsets(0, range(20, 25))


def test_the_first_batch_of_a_query_notices_records_that_go_before_it_runs(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(stem="emptied-at-first")
    send(broker.bootstrap, topic, [b"x"] * 10)
    query = make_query(subscribe=topic)
    query.plan()
    delete_up_to(broker.bootstrap, topic, 4)
    query.restart()
    with pytest.raises(DataLost, match=r"offsets 0 to 3 are gone, its log starts at 4"):
        query.read()
    query.restart(failOnDataLoss="false")
    assert query.read() == offsets(0, range(4, 10))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_topic_made_anew_after_a_batch_was_planned_is_never_read_in_its_place(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery, is_restarted: bool
) -> None:
    topic = make_topic(stem="replaced")
    send(broker.bootstrap, topic, [b"old"] * 10)
    query = make_query(subscribe=topic)
    query.plan()
    recreate(broker.bootstrap, topic)
    send(broker.bootstrap, topic, [b"new"] * 20)
    if is_restarted:
        query.restart()
    with pytest.raises(DataLost, match=r"deleted (or|and) created again"):
        query.read()
    query.restart(failOnDataLoss="false")
    assert query.read() == []
    assert query.trigger() == offsets(0, range(20))
    assert query.trigger() == []


def test_a_topic_that_is_gone_and_comes_back_is_read_whole_where_losses_are_borne(
    broker: MillraceProcess, make_query: MakeQuery
) -> None:
    stem = unique_name("coming-back")
    stays, goes = (create_topic(broker.bootstrap, f"{stem}-{name}") for name in ("stays", "goes"))
    for topic in (stays, goes):
        send(broker.bootstrap, topic, [b"x"] * 5)
    group = unique_name("progress")
    query = make_query(subscribePattern=f"{stem}-.*", failOnDataLoss="false", commitGroup=group)
    assert len(query.trigger()) == 10
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([goes])[goes].result(30)
    send(broker.bootstrap, stays, [b"x"] * 5)
    assert len(query.trigger()) == 5
    create_topic(broker.bootstrap, goes)
    send(broker.bootstrap, goes, [b"x"] * 3)
    assert query.trigger() == offsets(0, range(3))
    assert query.trigger() == []
    with BrokerClient(broker.bootstrap) as client:
        assert client.committed(group, [TopicPartition(goes, 0)]) == {TopicPartition(goes, 0): 3}


def test_a_restart_in_the_middle_of_a_compacted_log_reads_what_is_left(
    tmp_path: Path, make_query: MakeQuery
) -> None:
    settings = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    broker = MillraceProcess(tmp_path, settings)
    broker.start()
    try:
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": str(1 << 20),
            "delete.retention.ms": "3600000",
        }
        topic = create_topic(broker.bootstrap, unique_name("compacted"), configs=configs)
        client = producer(broker.bootstrap, batch_num_messages=10)
        for number in range(1_000):
            client.produce(topic, key=b"%d" % (number % 20), value=bytes(500))
        assert client.flush(60) == 0
        query = make_query(broker, subscribe=topic, maxOffsetsPerTrigger="300")
        query.trigger()
        # The next batch is planned, and all its records are superseded before it runs.
        query.plan()
        send(broker.bootstrap, topic, [bytes(300_000)] * 8)
        eventually(lambda: len(by_client(broker.bootstrap, topic)) < 100, deadline_s=120)
        query.restart()
        assert query.read() == []
        query.drain()
        left = [(each.partition, each.offset) for each in by_client(broker.bootstrap, topic)]
        assert [place for batch in query.batches[1:] for place in batch] == left
    finally:
        broker.end()


def test_what_is_there_now_ends_there_in_as_many_batches_as_limits_want(
    broker: MillraceProcess, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(stem="now")
    send(broker.bootstrap, topic, [b"x"] * 25)
    query = make_query(subscribe=topic, maxOffsetsPerTrigger="10")
    query.restart(available_now=True)
    query.trigger()
    send(broker.bootstrap, topic, [b"x"] * 25)
    query.drain()
    assert query.places == offsets(0, range(25))
    assert len(query.batches) == 3
    assert not isinstance(query.reader.getDefaultReadLimit(), ReadAllAvailable)
