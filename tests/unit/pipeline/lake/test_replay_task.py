"""A task of a replay: each archived record once and in order, in transactions that end with their mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from millrace.client.transactional import EncodedBatch, Marker, ProducerIdentity
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake import replay_task
from millrace.pipeline.lake.replay_task import ReplayTask, sender

if TYPE_CHECKING:
    from millrace.pipeline.lake.topics import BrokerOptions

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Broker:
    """What was committed and marked, and the transactions that are open, by transactional id."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self.marks: dict[TopicPartition, int] = {}
        self.open: dict[str, tuple[list[EncodedBatch], Marker | None]] = {}
        self.ended: list[tuple[str, bool]] = []
        self.fails_at: int | None = None

    @contextmanager
    def client(self) -> Iterator[Broker]:
        yield self

    # In place of the functions of `transactional`.

    def init_producer(self, _client: object, name: str, _timeout_ms: int) -> ProducerIdentity:
        self.open[name] = ([], None)
        return ProducerIdentity(name, 1, 0)

    def read_marker(self, _client: object, _group: str, place: TopicPartition) -> Marker | None:
        return Marker(self.marks[place], "") if place in self.marks else None

    def end_transaction(self, _client: object, identity: ProducerIdentity, *, is_commit: bool) -> None:
        name = str(identity.transactional_id)
        batches, marker = self.open.pop(name)
        self.ended.append((name, is_commit))
        if is_commit:
            for batch in batches:
                number = batch.partition.partition
                self.sent[number] = self.sent.get(number, 0) + batch.record_count
                assert marker is not None
                self.marks[batch.partition] = marker.offset


class Producer:
    def __init__(self, client: Broker, identity: ProducerIdentity, *, timeout_ms: int) -> None:
        self.identity = identity
        self.is_open = False
        self._broker = client

    def produce(self, batches: list[EncodedBatch]) -> None:
        self.is_open = True
        waiting, _ = self._broker.open[str(self.identity.transactional_id)]
        waiting += batches
        if self._broker.fails_at is not None and len(waiting) >= self._broker.fails_at:
            raise PipelineError("no room")

    def mark(self, _group: str, _place: TopicPartition, marker: Marker) -> None:
        name = str(self.identity.transactional_id)
        self._broker.open[name] = (self._broker.open[name][0], marker)

    def abort(self) -> None:
        if self.is_open:
            self._broker.end_transaction(None, self.identity, is_commit=False)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker()
    for name in ("init_producer", "read_marker", "end_transaction"):
        monkeypatch.setattr(replay_task, name, getattr(found, name))
    monkeypatch.setattr(replay_task, "TaskProducer", Producer)
    return found


def rows(*places: tuple[int, int]) -> pa.RecordBatch:
    count = len(places)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
            "key": pa.array([None] * count, pa.binary()),
            "value": pa.array([b"v"] * count, pa.binary()),
            "headers": pa.array([None] * count, HEADERS),
            "timestamp_ms": pa.array([5] * count, pa.int64()),
        }
    )


def replayed(broker: Broker, *batches: pa.RecordBatch, limit: int = 50_000) -> list[tuple[int, int, int]]:
    task = ReplayTask(
        broker=cast("BrokerOptions", broker), group="replay", target="copy", transaction_records=limit
    )
    (result,) = sender(task)(iter(batches))
    return [(row["partition"], row["sent"], row["next"]) for row in result.to_pylist()]


def test_each_partition_is_sent_as_a_whole_and_marked_behind_its_last_record(broker: Broker) -> None:
    found = replayed(broker, rows((0, 3), (0, 4), (2, 7)), rows(), rows((2, 9)))
    assert found == [(0, 2, 5), (2, 2, 10)]
    assert broker.sent == {0: 2, 2: 2}
    assert broker.marks == {TopicPartition("copy", 0): 5, TopicPartition("copy", 2): 10}
    assert broker.ended == [("replay-0", True), ("replay-2", True)]


def test_records_that_another_attempt_has_sent_are_passed_over(broker: Broker) -> None:
    broker.marks[TopicPartition("copy", 0)] = 5
    assert replayed(broker, rows((0, 3), (0, 4)), rows((0, 5), (0, 6))) == [(0, 2, 7)]
    assert broker.sent == {0: 2}


def test_an_attempt_that_comes_late_sends_nothing(broker: Broker) -> None:
    batch = rows((0, 3), (0, 4))
    replayed(broker, batch)
    assert replayed(broker, batch) == [(0, 0, 5)]
    assert broker.sent == {0: 2}
    assert len(broker.ended) == 1


def test_a_long_partition_is_sent_in_several_transactions(broker: Broker) -> None:
    batches = [rows(*((0, offset) for offset in range(start, start + 4))) for start in (0, 4, 8)]
    assert replayed(broker, *batches, limit=6) == [(0, 12, 12)]
    assert broker.ended == [("replay-0", True)] * 2


def test_what_fails_is_aborted_and_marks_nothing(broker: Broker) -> None:
    broker.fails_at = 2
    with pytest.raises(PipelineError, match="no room"):
        replayed(broker, rows((0, 1)), rows((0, 2)))
    assert broker.ended == [("replay-0", False)]
    assert (broker.sent, broker.marks) == ({}, {})


def test_a_task_without_rows_has_no_results(broker: Broker) -> None:
    assert replayed(broker) == []
