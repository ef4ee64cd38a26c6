"""Which role a replica has on this broker, when its lease or its disk is not what the metadata thinks."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest

from millrace.broker.replication.local_replicas import LocalReplicas
from millrace.core.ids import Epoch, NodeId
from millrace.log.errors import LogDirectoryOffline, StorageError
from millrace.log.segments import checkpoints
from millrace.metadata.config_definitions import BrokerLayers, topic_settings
from millrace.metadata.image import PartitionState, TopicState
from millrace.replica.leadership import Leadership
from millrace.replica.partition import NotLeader, Partition
from millrace.replica.partitions import Partitions
from millrace.sim.volume import SimVolume
from tests.unit.log.disks import Disks
from tests.unit.log.support import PARTITION, TOPIC_ID

ME, OTHER = NodeId(1), NodeId(2)


class PlainRoles:
    """Without fetchers and sessions: a leader leads, a follower knows whom it follows."""

    def __init__(self, state: Callable[[], PartitionState]) -> None:
        self._state = state

    def lead(self, partition: Partition, state: PartitionState) -> None:
        leadership = Leadership(
            ME, leader_epoch=state.leader_epoch, epoch_start_offset=0, lag_ms_max=1_000, now_ms=0
        )
        leadership.update(replicas=state.replicas, isr=state.isr, partition_epoch=1, now_ms=0)
        partition.lead_replicas(leadership)

    def follow(self, partition: Partition, leader_id: NodeId, state: PartitionState) -> None:
        partition.follow(leader_id, state.leader_epoch)

    def forget(self, partition: Partition) -> None:
        pass

    def throttles_changed(self) -> None:
        pass

    def state_of(self, partition: Partition) -> PartitionState:
        return self._state()


class Broker:
    def __init__(self) -> None:
        self.disks = Disks(SimVolume(random.Random(1)))
        self.partitions = Partitions()
        self.replicas = LocalReplicas(
            self.disks.directories,
            self.partitions,
            node_id=ME,
            flush_wanted=lambda _: None,
            roles=PlainRoles(lambda: self.state),
        )
        self.told: list[int] = []
        """The leader epoch of the partition, whenever it was told of."""
        self.replicas.subscribe(lambda partition: self.told.append(partition.leader_epoch))
        self.replicas.fence(False)
        self.state = PartitionState(ME, Epoch(5), (ME, OTHER), (ME, OTHER), 1)
        settings = topic_settings({}, BrokerLayers(static={}))
        self.disks.run(self.replicas.start(self.topic, [0], settings))

    @property
    def topic(self) -> TopicState:
        return TopicState(
            name=PARTITION.topic,
            topic_id=TOPIC_ID,
            partitions=(self.state,),
            configs={},
            internal=False,
            mod_revision=1,
        )

    @property
    def partition(self) -> Partition:
        partition = self.partitions.find(*PARTITION)
        assert partition is not None
        return partition


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.disks.dispose()


def test_a_broker_without_a_lease_names_nobody_as_leader_of_what_it_led(broker: Broker) -> None:
    broker.partition.refuse_unless_leader()
    broker.replicas.fence(True)
    with pytest.raises(NotLeader) as refused:
        broker.partition.refuse_unless_leader()
    assert refused.value.leader_id < 0
    broker.replicas.fence(False)
    broker.partition.refuse_unless_leader()


def test_a_broker_of_several_leads_nothing_until_it_has_its_place(broker: Broker) -> None:
    fresh = LocalReplicas(
        broker.disks.directories,
        broker.partitions,
        node_id=ME,
        flush_wanted=lambda _: None,
        roles=PlainRoles(lambda: broker.state),
    )
    fresh.update(broker.topic, [0])
    with pytest.raises(NotLeader):
        broker.partition.refuse_unless_leader()
    fresh.fence(False)
    broker.partition.refuse_unless_leader()


def test_listeners_hear_of_partitions_that_come_change_and_go(broker: Broker) -> None:
    assert broker.told == [5]
    broker.state = broker.state._replace(leader=OTHER, leader_epoch=Epoch(6))
    broker.replicas.update(broker.topic, [0])
    broker.disks.run(broker.replicas.delete(PARTITION.topic, TOPIC_ID))
    assert broker.told == [5, 6, 6]


def test_a_broker_without_a_lease_says_of_a_failed_disk_that_it_failed(broker: Broker) -> None:
    """Named as its own leader, it would send clients to itself, who ask for the leader again and again."""
    broker.disks.directories.at(broker.disks.home()).fence("the disk is gone")
    broker.replicas.fence(True)
    with pytest.raises(LogDirectoryOffline):
        broker.partition.refuse_unless_leader()


def test_clients_of_a_failed_disk_are_sent_to_the_broker_that_leads_now(broker: Broker) -> None:
    broker.disks.directories.at(broker.disks.home()).fence("the disk is gone")
    broker.state = broker.state._replace(leader=OTHER, leader_epoch=Epoch(6))
    broker.replicas.update(broker.topic, [0])
    with pytest.raises(NotLeader) as refused:
        broker.partition.refuse_unless_leader()
    assert refused.value.leader_id == OTHER


@pytest.mark.parametrize("is_deleted", [True, False])
def test_checkpoints_forget_a_replica_that_is_gone(broker: Broker, is_deleted: bool) -> None:
    """Whether its topic is deleted or it lives elsewhere now: the next one of its name begins anew."""
    directories = broker.disks.directories

    def named() -> bool:
        paths = [f"{each.path}/{checkpoints.RECOVERY_POINTS}" for each in directories.all]
        return any(PARTITION in checkpoints.read_offsets(directories.volume, path) for path in paths)

    for directory in directories.all:
        broker.disks.run(directory.save_checkpoints())
    assert named()
    if is_deleted:
        broker.disks.run(broker.replicas.delete(PARTITION.topic, TOPIC_ID))
    else:
        broker.disks.run(broker.replicas.release(broker.topic, [0]))
    assert not named()


def test_a_deletion_is_over_when_every_log_is_gone(broker: Broker) -> None:
    """Whoever asks again after a failure finds the log that is left, and not nothing."""
    directories = broker.disks.directories
    broker.disks.volume.fail("rename", errno.EBUSY, path_contains=str(PARTITION))
    with pytest.raises(StorageError):
        broker.disks.run(broker.replicas.delete(PARTITION.topic, TOPIC_ID))
    assert broker.partitions.find(*PARTITION) is None
    assert directories.get(PARTITION) is not None
    broker.disks.run(broker.replicas.delete(PARTITION.topic, TOPIC_ID))
    assert directories.get(PARTITION) is None


def test_a_deletion_is_not_over_while_a_disk_is_away_that_may_hold_the_log() -> None:
    """Confirmed, the proof of the deletion would be gone, and the disk would bring the topic back."""
    broker = Broker()
    disks = broker.disks
    home = disks.home()
    disks.close()
    disks.volume.fail("list", errno.EIO, path_contains=home)
    directories = disks.open()
    replicas = LocalReplicas(directories, Partitions(), node_id=ME, flush_wanted=lambda _: None)
    assert directories.get(PARTITION) is None
    with pytest.raises(LogDirectoryOffline):
        disks.run(replicas.delete(PARTITION.topic, TOPIC_ID))
    disks.dispose()
