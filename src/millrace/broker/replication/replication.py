"""Everything of a broker that makes it one of several: its peers, the leaders that it follows, the followers
that it leads, and the in-sync replicas that it tells the metadata of."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from millrace.broker.replication.fetcher import Fetchers, FetcherSettings
from millrace.broker.replication.isr import IsrKeeper
from millrace.broker.replication.mender import Mender
from millrace.broker.replication.peers import Peers
from millrace.broker.replication.replica_sessions import ReplicaSessions, steady_ms
from millrace.broker.replication.throttles import FollowerThrottles
from millrace.client.security import PLAINTEXT, SecurityOptions
from millrace.core.background import Background
from millrace.core.ids import NodeId
from millrace.metadata.image import Image, PartitionState
from millrace.metadata.service import Metadata
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """How this broker follows others and is followed."""

    listener: str | None = None
    """The listener at whose address other brokers are reached; None for the first that they have."""
    security: SecurityOptions = PLAINTEXT
    """How they are connected to there."""
    lag_ms_max: int
    """How long a follower may be behind and still count as in sync."""
    fetcher: FetcherSettings
    leader_bytes_per_second: int
    follower_bytes_per_second: int
    new_broker_bytes_per_second: int
    """The rate for the replicas that a new broker gets as its share."""


class Replication:
    """Replicates the partitions of this broker from and to others. Constructing it starts nothing: partitions
    may be given roles before `start`."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        *,
        node_id: NodeId,
        settings: ReplicationSettings,
        background: Background,
        chance: random.Random,
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._settings = settings
        self._background = background
        self._loops: list[asyncio.Task[None]] = []
        self.peers = Peers(
            lambda: metadata.image,
            node_id=node_id,
            listener=settings.listener,
            security=lambda: self._settings.security,
            declare_dead=metadata.declare_dead,
            failures=background.failures,
        )
        self.throttles = FollowerThrottles(lambda: metadata.image, node_id)
        self.fetchers = Fetchers(
            self.peers,
            node_id=node_id,
            broker_epoch=self._broker_epoch,
            settings=lambda: self._settings.fetcher,
            throttles=self.throttles,
            chance=chance,
            failures=background.failures,
        )
        self.sessions = ReplicaSessions(metadata, partitions, self.peers, node_id=node_id, chance=chance)
        self.mender = Mender(lambda: metadata.image, partitions, self.peers, node_id=node_id)
        self.isr = IsrKeeper(
            metadata,
            partitions,
            node_id=node_id,
            lag_ms_max=lambda: self._settings.lag_ms_max,
            applied=self.lead,
        )

    def start(self) -> None:
        """Begin to fetch, once this broker can be reached itself: others take a closed port for a dead
        broker."""
        self.reconfigure(self._settings)
        self._metadata.subscribe(self.peers.image_changed)
        self._metadata.subscribe(self._image_changed)
        self.fetchers.start()
        self._loops = [
            self._background.keep("in-sync-replicas", self.isr.run, reset=self.isr.check_all),
            self._background.keep("mender", self.mender.run),
        ]

    def stop(self) -> None:
        self.fetchers.stop()
        self.throttles.stop()
        self.sessions.throttle.stop()
        self.peers.stop()
        for loop in self._loops:
            loop.cancel()

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """Take over what is set now."""
        self._settings = settings
        self.sessions.throttle.set_rate(settings.leader_bytes_per_second)
        self.throttles.named.set_rate(settings.follower_bytes_per_second)
        self.throttles.arriving.set_rate(settings.new_broker_bytes_per_second)
        self.throttles.refresh()

    def _image_changed(self, old: Image, new: Image) -> None:
        if old.filling is not new.filling:
            self.throttles.refresh()
        if old.brokers is not new.brokers or old.stopping is not new.stopping:
            self.isr.check_all()

    def throttles_changed(self) -> None:
        """A topic's settings may name other replicas now: those that wait find out whether they still have
        to."""
        self.sessions.throttle.let_go()
        self.throttles.named.let_go()

    # What the metadata wants of this broker.

    def state_of(self, partition: Partition) -> PartitionState | None:
        topic = self._metadata.image.topics_by_id.get(partition.topic_id)
        if topic is None or partition.index >= len(topic.partitions):
            return None
        return topic.partitions[partition.index]

    def lead(self, partition: Partition, state: PartitionState) -> None:
        """Lead a partition with several replicas, or take over what is new about them."""
        self.fetchers.unfollow(partition)
        leadership = partition.leadership
        now_ms = steady_ms()
        if leadership is None or leadership.leader_epoch != state.leader_epoch:
            leadership = Leadership(
                self._node_id,
                leader_epoch=state.leader_epoch,
                epoch_start_offset=partition.log.log_end_offset,
                lag_ms_max=self._settings.lag_ms_max,
                now_ms=now_ms,
            )
        leadership.min_insync = partition.min_insync_replicas
        leadership.update(
            replicas=state.replicas, isr=state.isr, partition_epoch=state.partition_epoch, now_ms=now_ms
        )
        partition.isr_wanted = self.isr.wanted
        partition.lead_replicas(leadership)
        self.isr.check(partition)

    def follow(self, partition: Partition, leader_id: NodeId, state: PartitionState) -> None:
        """Follow whoever leads, or wait for somebody to."""
        partition.follow(leader_id, state.leader_epoch)
        if leader_id >= 0:
            self.fetchers.follow(partition)
        else:
            self.fetchers.unfollow(partition)

    def forget(self, partition: Partition) -> None:
        """Neither lead nor follow it with others any more."""
        self.fetchers.unfollow(partition)

    # Facts, as they are now.

    def _broker_epoch(self) -> int:
        broker = self._metadata.image.brokers.get(self._node_id)
        return -1 if broker is None else broker.epoch
