"""`millrace transaction`: what is asked, what is shown, and which transactions hang."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from millrace.cli import broker_requests
from millrace.cli.clients import RequestFailed
from millrace.cli.transaction import transaction
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from tests.unit.cli.fakes import FakeBroker

NOW_S = 1_000_000.0
OLD_MS = int(NOW_S * 1000) - 3_600_000


class Cluster:
    """Transactions that coordinators know, and producers that partitions know."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, Any] = {}
        self.producers: dict[tuple[str, int], list[Any]] = {}
        self.marker_error = 0
        self.broker = FakeBroker(
            {
                ApiKey.LIST_TRANSACTIONS: self._listed,
                ApiKey.DESCRIBE_TRANSACTIONS: self._described,
                ApiKey.METADATA: self._metadata,
                ApiKey.DESCRIBE_PRODUCERS: self._producers,
                ApiKey.WRITE_TXN_MARKERS: self._marked,
            }
        )
        monkeypatch.setattr(broker_requests, "connected", self.broker.connected)
        monkeypatch.setattr(time, "time", lambda: NOW_S)

    def open(
        self, name: str, *, producer_id: int, topic: str, partition: int, state: str = "Ongoing"
    ) -> None:
        self.known[name] = SimpleNamespace(
            error_code=0,
            transactional_id=name,
            transaction_state=state,
            producer_id=producer_id,
            producer_epoch=2,
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=OLD_MS if state == "Ongoing" else -1,
            topics=[SimpleNamespace(topic=topic, partitions=[partition])],
        )

    def writes(
        self, topic: str, partition: int, *, producer_id: int, start: int, last_ms: int = OLD_MS
    ) -> None:
        self.producers.setdefault((topic, partition), []).append(
            SimpleNamespace(
                producer_id=producer_id,
                producer_epoch=2,
                coordinator_epoch=-1,
                last_timestamp=last_ms,
                current_txn_start_offset=start,
            )
        )

    def _listed(self, request: Any) -> Any:
        unknown = [state for state in request.state_filters if state == "Humbug"]
        found = [
            each
            for each in self.known.values()
            if not request.state_filters or each.transaction_state in request.state_filters
        ]
        return SimpleNamespace(error_code=0, unknown_state_filters=unknown, transaction_states=found)

    def _described(self, request: Any) -> Any:
        missing = SimpleNamespace(error_code=int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), transactional_id="x")
        states = [self.known.get(name, missing) for name in request.transactional_ids]
        return SimpleNamespace(transaction_states=states)

    def _metadata(self, request: Any) -> Any:
        wanted = None if request.topics is None else [topic.name for topic in request.topics]
        names = sorted({topic for topic, _ in self.producers})
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=name,
                    error_code=0,
                    partitions=[
                        SimpleNamespace(partition_index=number)
                        for topic, number in self.producers
                        if topic == name
                    ],
                )
                for name in names
                if wanted is None or name in wanted
            ]
        )

    def _producers(self, request: Any) -> Any:
        (topic,) = request.topics
        partitions = [
            SimpleNamespace(
                partition_index=number,
                error_code=0,
                active_producers=self.producers.get((topic.name, number), []),
            )
            for number in topic.partition_indexes
        ]
        return SimpleNamespace(topics=[SimpleNamespace(partitions=partitions)])

    def _marked(self, _request: Any) -> Any:
        partition = SimpleNamespace(error_code=self.marker_error)
        return SimpleNamespace(markers=[SimpleNamespace(topics=[SimpleNamespace(partitions=[partition])])])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def run(*words: str) -> Result:
    return CliRunner().invoke(transaction, words)


def test_transactions_are_listed_by_name(cluster: Cluster) -> None:
    cluster.open("b", producer_id=2, topic="t", partition=0)
    cluster.open("a", producer_id=1, topic="t", partition=0, state="CompleteCommit")
    lines = [line.split() for line in run("list").output.splitlines()]
    assert lines[1:] == [["a", "1", "CompleteCommit"], ["b", "2", "Ongoing"]]
    only = run("list", "--state", "Ongoing", "--longer-than", "1.5", "--pattern", "b.*", "--json")
    assert orjson.loads(only.output) == {"transactional_id": "b", "producer_id": 2, "state": "Ongoing"}
    _, request = cluster.broker.asked[-1]
    assert (request.duration_filter, request.transactional_id_pattern) == (1_500, "b.*")


@pytest.mark.usefixtures("cluster")
def test_a_state_that_does_not_exist_is_wrong_usage() -> None:
    result = run("list", "--state", "Humbug")
    assert result.exit_code == 2
    assert "no state is called Humbug" in result.output


def test_a_transaction_is_described_with_its_age_and_partitions(cluster: Cluster) -> None:
    cluster.open("b", producer_id=2, topic="t", partition=4)
    cluster.open("c", producer_id=3, topic="t", partition=4, state="Empty")
    output = run("describe", "b").output
    assert "Producer:          2, epoch 2\n" in output
    assert "Open for:          3600000 ms\n" in output
    assert "Partitions:        t-4\n" in output
    assert "Open for" not in run("describe", "c").output
    assert orjson.loads(run("describe", "c", "--json").output)["open_ms"] is None


@pytest.mark.usefixtures("cluster")
def test_a_transactional_id_that_nobody_knows_is_told() -> None:
    failure = run("describe", "nobody").exception
    assert isinstance(failure, RequestFailed)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in str(failure)


def test_those_hang_that_are_old_and_known_to_no_coordinator(cluster: Cluster) -> None:
    cluster.open("known", producer_id=1, topic="t", partition=0)
    cluster.writes("t", 0, producer_id=1, start=10)
    cluster.writes("t", 0, producer_id=2, start=20)
    # The coordinator knows it, but in another partition.
    cluster.writes("t", 1, producer_id=1, start=30)
    # Young, or without a transaction: they are well.
    cluster.writes("t", 1, producer_id=3, start=40, last_ms=int(NOW_S * 1000) - 1_000)
    cluster.writes("u", 0, producer_id=4, start=-1)
    lines = [line.split() for line in run("find-hanging").output.splitlines()]
    assert lines[1:] == [["t", "0", "2", "2", "20"], ["t", "1", "1", "2", "30"]]
    assert run("find-hanging", "--topic", "u", "--json").output == ""
    young = run("find-hanging", "--max-transaction-timeout", "0", "--json").output.splitlines()
    assert [orjson.loads(line)["start_offset"] for line in young] == [20, 30, 40]


def test_the_transaction_that_begins_at_an_offset_is_aborted(cluster: Cluster) -> None:
    cluster.writes("t", 1, producer_id=7, start=30)
    words = ("abort", "--topic", "t", "--partition", "1", "--start-offset")
    result = run(*words, "30")
    assert result.output == "aborted the transaction of producer 7 in t-1\n"
    key, request = cluster.broker.asked[-1]
    assert key is ApiKey.WRITE_TXN_MARKERS
    (marker,) = request.markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 2, False)
    # A partition that has never seen a marker knows no epoch of a coordinator.
    assert marker.coordinator_epoch == 0
    result = run(*words, "31")
    assert result.exit_code == 1
    assert "t-1: no transaction begins at offset 31" in result.output


def test_a_marker_that_is_refused_is_told(cluster: Cluster) -> None:
    cluster.writes("t", 1, producer_id=7, start=30)
    cluster.marker_error = int(ErrorCode.INVALID_PRODUCER_EPOCH)
    result = run("abort", "--topic", "t", "--partition", "1", "--start-offset", "30")
    assert isinstance(result.exception, RequestFailed)
    assert "INVALID_PRODUCER_EPOCH" in str(result.exception)
