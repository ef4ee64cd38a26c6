"""Markers of ended transactions: written where they belong, and told when they are committed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.transactions.markers import Markers, NotHere
from millrace.broker.transactions.remote_transactions import MarkerReport, PartitionGone
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.groups.service import OFFSETS_TOPIC
from millrace.log.errors import ProducerFenced
from millrace.log.state.transactions import EPOCH_PER_TRANSACTION, EndMarker
from millrace.replica.leadership import Leadership
from millrace.replica.partition import NotEnoughReplicas, Partition
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.unit.broker.handlers.broker import NOW_MS, Broker, FixedClock
from tests.unit.log.support import batch_of

PLACE = TopicPartition("orders", 0)
MARKER = EndMarker(7, 1, True, 0, EPOCH_PER_TRANSACTION)


class Others:
    """Other brokers, one of which may lead the place."""

    def __init__(self) -> None:
        self.leader_id: NodeId | None = None
        self.sent: list[tuple[NodeId, TopicPartition, EndMarker]] = []

    def leader_elsewhere(self, _place: TopicPartition) -> NodeId | None:
        return self.leader_id

    def write_marker(
        self, leader_id: NodeId, place: TopicPartition, marker: EndMarker, report: MarkerReport
    ) -> None:
        self.sent.append((leader_id, place, marker))
        report(NotHere(place))


class Bench:
    """A broker with a partition in which producer 7 has an open transaction."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(directory)
        self.broker.start()
        self.broker.create_topic("orders")
        self.others = Others()
        services = self.broker.services
        self.markers = Markers(
            self.broker.metadata, services.partitions, self.broker.groups, FixedClock(), self.others
        )
        self.reports: list[MillraceError | None] = []
        self.written: list[bool] = []
        found = services.partitions.find(*PLACE)
        assert found is not None
        self.partition: Partition = found

        async def write() -> None:
            self.partition.append_transactional(batch_of(b"v", producer_id=7, transactional=True), NOW_MS)

        self.broker.run(write())

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.broker.run(work())

    def write(self, marker: EndMarker = MARKER, place: TopicPartition = PLACE) -> None:
        self.markers.write(place, marker, self.reports.append)

    def is_done(self, marker: EndMarker = MARKER, place: TopicPartition = PLACE) -> bool:
        """As the coordinator hears it."""

        async def work() -> None:
            self.markers.write_for_coordinator(place, marker, self.written.append)

        self.run(work)
        return self.written.pop()

    def with_follower(self, *isr: int) -> None:
        leadership = Leadership(1, leader_epoch=1, epoch_start_offset=0, lag_ms_max=30_000, now_ms=0)
        leadership.update(replicas=(1, 2), isr=isr, partition_epoch=1, now_ms=0)
        self.partition.lead_replicas(leadership)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data")
    yield bench
    bench.broker.stop()


def test_a_marker_ends_the_transaction_and_is_told_at_once_where_nobody_has_to_follow(bench: Bench) -> None:
    async def work() -> None:
        bench.write()
        assert bench.reports == [None]

    bench.run(work)
    assert bench.partition.log.log_end_offset == 2
    assert bench.partition.log.last_stable_offset == 2


def test_a_marker_that_is_there_from_an_earlier_attempt_is_not_written_again(bench: Bench) -> None:
    async def work() -> None:
        bench.write()
        bench.write()

    bench.run(work)
    assert bench.reports == [None, None]
    assert bench.partition.log.log_end_offset == 2


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_marker_counts_when_the_followers_have_it_also_one_from_before(bench: Bench, attempts: int) -> None:
    async def work() -> None:
        bench.with_follower(1, 2)
        for _ in range(attempts):
            bench.write()
        assert bench.reports == []
        bench.partition.replica_fetched(2, broker_epoch=1, offset=2, log_start_offset=0, now_ms=1)
        assert bench.reports == [None] * attempts

    bench.run(work)


def test_who_waits_for_a_marker_is_told_when_another_broker_leads(bench: Bench) -> None:
    async def work() -> None:
        bench.with_follower(1, 2)
        bench.write()
        bench.partition.follow(2, 2)

    bench.run(work)
    assert [type(error) for error in bench.reports] == [NotHere]


def test_a_partition_that_another_broker_leads_is_told_from_one_that_is_gone(bench: Bench) -> None:
    async def work() -> None:
        bench.partition.follow(2, 1)
        bench.write()
        bench.write(place=TopicPartition("orders", 9))
        bench.write(place=TopicPartition("nothing", 0))

    bench.run(work)
    assert [type(error) for error in bench.reports] == [NotHere, PartitionGone, PartitionGone]


def test_a_late_marker_is_refused_and_changes_nothing(bench: Bench) -> None:
    async def work() -> None:
        bench.write(MARKER._replace(epoch=0))

    bench.run(work)
    assert [type(error) for error in bench.reports] == [ProducerFenced]
    assert bench.partition.log.log_end_offset == 1


def test_a_peer_hears_at_once_of_a_partition_in_which_nothing_can_be_committed(bench: Bench) -> None:
    async def work() -> None:
        bench.with_follower(1)
        bench.partition.require_replicas(min_insync=2)
        bench.markers.write_for_peer(PLACE, MARKER, bench.reports.append)

    bench.run(work)
    assert [type(error) for error in bench.reports] == [NotEnoughReplicas]
    assert bench.partition.log.log_end_offset == 1


def test_a_coordinator_is_done_with_a_partition_that_is_gone_or_knows_better(bench: Bench) -> None:
    assert bench.is_done(place=TopicPartition("nothing", 0))
    assert bench.is_done(MARKER._replace(epoch=0))
    assert bench.is_done()


def test_a_coordinator_is_not_done_while_somebody_else_is_to_lead(bench: Bench) -> None:
    bench.partition.follow(2, 1)
    assert not bench.is_done()


def test_a_partition_that_is_led_elsewhere_is_written_there(bench: Bench) -> None:
    bench.others.leader_id = NodeId(2)
    assert not bench.is_done()
    assert bench.others.sent == [(2, PLACE, MARKER)]
    assert bench.partition.log.log_end_offset == 1


def test_the_marker_of_offsets_goes_through_their_groups(bench: Bench) -> None:
    bench.broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    place = TopicPartition(OFFSETS_TOPIC, 0)
    offsets = bench.broker.services.partitions.find(*place)
    assert offsets is not None
    end_offset = offsets.log.log_end_offset

    async def work() -> None:
        bench.write(place=place)

    bench.run(work)
    assert bench.reports == [None]
    assert offsets.log.log_end_offset == end_offset + 1
