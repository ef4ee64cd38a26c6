"""A leader that is about to be alone, where one in sync is enough: it says so at once, and not before its own
disk has what the others leave it with."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from millrace.broker.replication import isr
from millrace.broker.replication.isr import IsrKeeper
from millrace.core.ids import Epoch, NodeId
from millrace.log.config import LogConfig
from millrace.metadata.commands import AlterIsr
from millrace.metadata.errors import MetadataError, StoreUnavailable
from millrace.metadata.image import EMPTY, Image, PartitionState
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition, TopicStats
from millrace.replica.partitions import Partitions
from millrace.sim.volume import SimVolume
from tests.unit.log.support import NOW_MS, PARTITION, TOPIC_ID, Disk, batch_of
from tests.unit.metadata.worlds import broker

ME, FOLLOWER, OTHER = NodeId(1), NodeId(2), NodeId(3)
REPLICAS = (ME, FOLLOWER, OTHER)
LEADER_EPOCH = Epoch(5)
LAG_MS_MAX = 60_000


class Leader:
    """Broker 1 leads; what it asks the metadata for is granted."""

    def __init__(self) -> None:
        self.disk = Disk(SimVolume(random.Random(1)), "/data", LogConfig())
        self.partition = Partition(PARTITION, TOPIC_ID, self.disk.log(), TopicStats(), lambda _: None)
        self.asked: list[tuple[tuple[NodeId, ...], int]] = []
        """What it wanted to be in sync, and how much was on its disk then."""
        self.failures: list[MetadataError] = []
        """What it hears before it is answered, last first."""
        self.image: Image = EMPTY
        self.register(*REPLICAS)
        partitions = Partitions()
        partitions.add(self.partition)
        self.keeper = IsrKeeper(
            self,
            partitions,
            node_id=ME,
            lag_ms_max=lambda: LAG_MS_MAX,
            applied=lambda _, state: self.lead(state.isr),
        )

    def register(self, *node_ids: NodeId, stopping: Sequence[NodeId] = ()) -> None:
        self.image = replace(
            self.image,
            brokers={node_id: broker(node_id) for node_id in node_ids},
            stopping=dict.fromkeys(stopping, 1),
        )

    async def alter_isrs(self, requests: Sequence[AlterIsr]) -> list[PartitionState | MetadataError]:
        if self.failures:
            raise self.failures.pop()
        outcomes: list[PartitionState | MetadataError] = []
        for request in requests:
            self.asked.append((tuple(request.isr), self.partition.log.flushed_offset))
            epoch = request.partition_epoch + 1
            outcomes.append(PartitionState(ME, LEADER_EPOCH, REPLICAS, tuple(request.isr), epoch))
        return outcomes

    def lead(self, isr: Sequence[NodeId], *, min_insync: int = 1, leader_epoch: Epoch = LEADER_EPOCH) -> None:
        now_ms = int(self.disk.loop.time() * 1000)
        leadership = self.partition.leadership
        if leadership is None or leadership.leader_epoch != leader_epoch:
            leadership = Leadership(
                ME,
                leader_epoch=leader_epoch,
                epoch_start_offset=self.partition.log.log_end_offset,
                lag_ms_max=LAG_MS_MAX,
                now_ms=now_ms,
            )
        self.partition.min_insync_replicas = leadership.min_insync = min_insync
        leadership.update(
            replicas=REPLICAS, isr=isr, partition_epoch=leadership.partition_epoch + 1, now_ms=now_ms
        )
        self.partition.lead_replicas(leadership)
        self.keeper.check(self.partition)

    def append(self, *values: bytes) -> None:
        self.partition.append(batch_of(*values), NOW_MS)

    def keep_isr(self, event: Callable[[], None] = lambda: None) -> None:
        """For as long as anything happens in it, after the event."""

        async def work() -> None:
            keeping = asyncio.get_running_loop().create_task(self.keeper.run())
            await asyncio.sleep(0)
            event()
            await asyncio.sleep(0.1)
            keeping.cancel()

        self.disk.run(work())


@pytest.fixture
def leader() -> Iterator[Leader]:
    leader = Leader()
    yield leader
    leader.disk.dispose()


def test_it_says_at_once_that_it_is_alone(leader: Leader) -> None:
    leader.register(ME, OTHER)
    leader.keep_isr(lambda: leader.lead((ME, FOLLOWER)))
    assert [isr for isr, _ in leader.asked] == [(ME,)]


def test_it_says_so_when_the_last_other_one_goes_while_it_leads(leader: Leader) -> None:
    leader.lead((ME, FOLLOWER))

    def follower_goes() -> None:
        assert leader.asked == []
        leader.register(ME, OTHER)
        leader.keeper.check_all()

    leader.keep_isr(follower_goes)
    assert [isr for isr, _ in leader.asked] == [(ME,)]


def test_a_follower_that_is_about_to_stop_is_let_go(leader: Leader) -> None:
    leader.register(*REPLICAS, stopping=(FOLLOWER,))
    leader.keep_isr(lambda: leader.lead((ME, FOLLOWER)))
    assert [isr for isr, _ in leader.asked] == [(ME,)]


def test_what_others_may_have_committed_with_it_is_on_its_disk_first(leader: Leader) -> None:
    """Of an earlier term it does not know what was acknowledged, only what there was. Who leaves now may have
    the only other copy, and is passed over from then on."""
    leader.lead((ME, FOLLOWER), leader_epoch=Epoch(LEADER_EPOCH - 1))
    leader.append(b"before", b"its", b"term")
    end = leader.partition.log.log_end_offset
    assert (leader.partition.log.flushed_offset, leader.partition.log.high_watermark) == (0, 0)
    leader.register(ME, OTHER)
    leader.keep_isr(lambda: leader.lead((ME, FOLLOWER)))
    assert leader.asked == [((ME,), end)]


def test_what_it_committed_with_others_is_on_its_disk_first(leader: Leader) -> None:
    leader.lead((ME, FOLLOWER))
    leader.append(b"in", b"its", b"term")
    log, leadership = leader.partition.log, leader.partition.leadership
    assert leadership is not None
    leadership.fetched(
        FOLLOWER,
        broker_epoch=1,
        offset=log.log_end_offset,
        log_start_offset=0,
        log_end_offset=log.log_end_offset,
        now_ms=0,
    )
    leader.partition.commit_what_is_replicated()
    assert log.flushed_offset < log.high_watermark == log.log_end_offset
    leader.register(ME, OTHER)
    leader.keep_isr(leader.keeper.check_all)
    assert leader.asked == [((ME,), log.log_end_offset)]


def test_others_are_taken_out_by_the_controller_while_two_are_left(leader: Leader) -> None:
    leader.register(ME, OTHER)
    leader.keep_isr(lambda: leader.lead(REPLICAS))
    assert leader.asked == []


def test_with_a_minimum_of_two_the_controller_takes_out_the_last_other_one_as_well(leader: Leader) -> None:
    """Which stays eligible, because nothing is committed without it."""
    leader.register(ME, OTHER)
    leader.keep_isr(lambda: leader.lead((ME, FOLLOWER), min_insync=2))
    assert leader.asked == []


def test_nobody_is_taken_out_while_all_are_there(leader: Leader) -> None:
    leader.keep_isr(lambda: leader.lead((ME, FOLLOWER)))
    assert leader.asked == []


def test_a_store_that_is_away_is_complained_of_once_until_something_changes(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked several times a second, for as long as it is away: the log would tell of nothing else."""
    monkeypatch.setattr(isr, "RETRY_S", 0.0)
    caplog.set_level(logging.INFO, isr.__name__)
    leader.failures += [StoreUnavailable("it has no leader")] * 3 + [StoreUnavailable("it is away")] * 20
    leader.register(ME, OTHER)
    leader.keep_isr(lambda: leader.lead((ME, FOLLOWER)))
    assert [in_sync for in_sync, _ in leader.asked] == [(ME,)], "it is told when it is back"
    said = [record.getMessage() for record in caplog.records if "be changed" in record.getMessage()]
    assert said == [
        "the in-sync replicas cannot be changed now: it is away",
        "the in-sync replicas cannot be changed now: it has no leader",
        "the in-sync replicas can be changed again",
    ]
