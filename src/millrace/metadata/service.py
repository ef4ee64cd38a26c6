"""The face of the metadata to the rest of the broker: the present image, its changes, and the commands.

`committing` knows how commands are committed. A call returns when the local image has the change, and this
broker has made it so where that was asked for.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from millrace.core.background import Background
from millrace.core.clock import IdSource
from millrace.core.ids import Epoch, NodeId, TopicId, format_topic_id
from millrace.metadata import records
from millrace.metadata.adoption import FoundLog, plan_adoption
from millrace.metadata.commands import (
    AllocateProducerIds,
    Alteration,
    AlterConfigs,
    AlterIsr,
    BeginStop,
    ClaimController,
    ConfigResource,
    ConfirmDeletion,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectionKind,
    ElectLeader,
    EndFilling,
    Policy,
    Reassign,
    RegisterBroker,
    RemoveMember,
    ReplaceConfigs,
    ReportOffline,
    SetClusterId,
    UnregisterBroker,
)
from millrace.metadata.committing import CommittedImage, ImageCallback
from millrace.metadata.errors import (
    ClusterMismatch,
    Conflict,
    LeaseExpired,
    MetadataError,
)
from millrace.metadata.filling import next_moves
from millrace.metadata.image import BrokerState, Image, PartitionState, TopicState
from millrace.metadata.leadership import (
    PartitionUpdate,
    Replica,
    assign_leaders,
    restore_preferred_leaders,
    withdraw_replicas,
)
from millrace.metadata.leftovers import Leftover, steps_to_clear
from millrace.metadata.security.service import SecurityMetadata
from millrace.metadata.store import Compare, LeaseId, Store

log = logging.getLogger(__name__)

PRODUCER_ID_BLOCK: Final = 1_000
"""How many producer ids a broker takes at a time: one commit serves a thousand producers."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """What a caller asks for; -1 and None leave the choice to the broker."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str]


class Metadata:
    """Constructing it starts nothing; `start` loads the image and follows the store until `close`."""

    def __init__(
        self,
        store: Store,
        *,
        policy: Callable[[], Policy],
        ids: IdSource,
        chance: random.Random,
    ) -> None:
        self._store = store
        self._policy = policy
        self._ids = ids
        self._committed = CommittedImage(store, policy=policy, chance=chance)
        self.security = SecurityMetadata(self._committed, operations_max=store.operations_max)
        """Changes of permissions, roles, quotas, credentials, tokens and tenants."""

    # The image.

    @property
    def image(self) -> Image:
        """What this broker knows of the cluster at this moment."""
        return self._committed.image

    def subscribe(self, callback: ImageCallback) -> Callable[[], None]:
        """Call back with (old, new) after every change, on the loop, before commands return. Returns a
        function that ends this.

        The callback must neither block nor raise."""
        return self._committed.subscribe(callback)

    def applied_by(self, wait_until_applied: Callable[[int], Awaitable[None]]) -> None:
        """Let commands that concern this broker's partitions return only when it has made the change so, as
        the reconciler says."""
        self._committed.applied_by(wait_until_applied)

    # Life.

    async def start(self, background: Background, *, found_cluster_id: str | None = None) -> None:
        """Open the store, load the image, give the cluster an id if it has none, and follow the store.

        `found_cluster_id` is what a data directory's meta.properties says. A new store takes it over; one
        that belongs to another cluster is refused. A store that goes back is fatal: StoreWentBack."""
        await self._committed.begin(background)
        if self.image.cluster_id == "":
            cluster_id = found_cluster_id or format_topic_id(self._ids.topic_id())
            await self._committed.submit([SetClusterId(cluster_id)], _nothing, is_local=False)
        if found_cluster_id is not None and found_cluster_id != self.image.cluster_id:
            raise ClusterMismatch(
                stored=self.image.cluster_id, found=found_cluster_id, where="the data directory"
            )

    async def close(self) -> None:
        await self._committed.close()

    # Topics.

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicState | MetadataError]:
        """For each, the topic as it is now (or would be), or the error. One commit serves all of them."""
        commands = [
            CreateTopic(
                name=topic.name,
                topic_id=self._ids.topic_id(),
                partition_count=topic.partition_count,
                replication_factor=topic.replication_factor,
                assignments=topic.assignments,
                configs=topic.configs,
            )
            for topic in topics
        ]
        return await self._committed.submit(
            commands,
            lambda place, _, after: after.topics[topics[place].name],
            validate_only=validate_only,
        )

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[TopicState | MetadataError]:
        """For each name or id, the topic that was deleted, or the error. The logs go after it is gone."""
        commands = [
            DeleteTopic(name=topic) if isinstance(topic, str) else DeleteTopic(topic_id=topic)
            for topic in topics
        ]

        def deleted(place: int, before: Image, _: Image) -> TopicState:
            topic = topics[place]
            return before.topics[topic] if isinstance(topic, str) else before.topics_by_id[topic]

        return await self._committed.submit(commands, deleted)

    async def create_partitions(
        self, requests: Sequence[CreatePartitions], *, validate_only: bool = False
    ) -> list[TopicState | MetadataError]:
        """For each, the topic as it is now (or would be), or the error."""
        return await self._committed.submit(
            requests,
            lambda place, _, after: after.topics[requests[place].name],
            validate_only=validate_only,
        )

    # Settings.

    async def alter_configs(
        self, requests: Sequence[tuple[ConfigResource, Sequence[Alteration]]], *, validate_only: bool = False
    ) -> list[MetadataError | None]:
        """IncrementalAlterConfigs: for each resource make all alterations, or none and return the error."""
        commands = [AlterConfigs(resource, alterations) for resource, alterations in requests]
        return await self._committed.submit(commands, _nothing, validate_only=validate_only)

    async def replace_configs(
        self, requests: Sequence[tuple[ConfigResource, Mapping[str, str]]], *, validate_only: bool = False
    ) -> list[MetadataError | None]:
        """The older AlterConfigs: each resource has exactly these settings afterwards."""
        commands = [ReplaceConfigs(resource, configs) for resource, configs in requests]
        return await self._committed.submit(commands, _nothing, validate_only=validate_only)

    # Producer ids.

    async def allocate_producer_ids(self, count: int = PRODUCER_ID_BLOCK) -> range:
        """A block of producer ids that nobody else ever gets."""
        (outcome,) = await self._committed.submit(
            [AllocateProducerIds(count)], lambda _, before, after: before.next_producer_id, is_local=False
        )
        first = _or_raise(outcome)
        return range(first, first + count)

    # Brokers.

    async def register_broker(
        self,
        broker: BrokerState,
        *,
        lease_id: LeaseId | None = None,
        offline: Mapping[TopicId, Sequence[int]] | None = None,
    ) -> BrokerState:
        """Make this broker known, with the replicas that it cannot serve; the answer carries its epoch.
        Raises NodeIdInUse, LeaseExpired."""
        command = RegisterBroker(broker, lease_id, offline or {})
        (outcome,) = await self._committed.submit([command], _nothing, is_local=False)
        _or_raise(outcome)
        registered = self.image.brokers.get(broker.node_id)
        if registered is None or registered.incarnation != broker.incarnation:
            raise LeaseExpired(lease_id or 0)
        return registered

    async def report_offline(
        self, node_id: NodeId, incarnation: str, replicas: Mapping[TopicId, Sequence[int]]
    ) -> None:
        """Report all the replicas that a registered broker cannot serve. Others are to lead them."""
        command = ReportOffline(node_id, incarnation, replicas)
        (outcome,) = await self._committed.submit([command], _nothing, is_local=False)
        _or_raise(outcome)

    async def unregister_broker(self, node_id: NodeId, incarnation: str) -> None:
        """Take this broker's registration back, unless a successor has replaced it."""
        (outcome,) = await self._committed.submit(
            [UnregisterBroker(node_id, incarnation)], _nothing, is_local=False
        )
        _or_raise(outcome)

    async def claim_controller(self, node_id: NodeId, incarnation: str) -> NodeId | None:
        """Become the controller unless there is one; returns who it is now."""
        (outcome,) = await self._committed.submit(
            [ClaimController(node_id, incarnation)], _nothing, is_local=False
        )
        _or_raise(outcome)
        return self.image.controller_id

    async def begin_controlled_shutdown(self, node_id: NodeId) -> int:
        """Hand over all that another broker can lead; returns how many partitions this one still leads.

        The broker gets no new replicas and joins no ISR until it starts again."""
        broker = self.image.brokers.get(node_id)
        if broker is None:
            return 0
        (outcome,) = await self._committed.submit(
            [BeginStop(node_id, broker.incarnation)], _nothing, is_local=False
        )
        _or_raise(outcome)
        await self.assign_leaders()
        return sum(
            state.leader == node_id for topic in self.image.topics.values() for state in topic.partitions
        )

    async def declare_dead(self, node_id: NodeId, incarnation: str) -> None:
        """End the lease of a broker that certainly does not run, so that it is replaced at once. Does nothing
        if another process runs in its place by now.

        If it runs after all, it learns this from its own session, stops leading and registers again."""
        broker = self.image.brokers.get(node_id)
        if broker is not None and broker.incarnation == incarnation and broker.lease_id is not None:
            await self._store.revoke_lease(broker.lease_id)

    async def remove_member(self, node_id: NodeId) -> None:
        """Forget a broker that is down for good. Raises BrokerAlive, NotAMember."""
        (outcome,) = await self._committed.submit([RemoveMember(node_id)], _nothing, is_local=False)
        _or_raise(outcome)
        waiting = [
            topic_id for topic_id, deleted in self.image.deleted_topics.items() if node_id in deleted.brokers
        ]
        if waiting:
            # That broker will never delete its logs, and nobody needs to wait for it.
            await self.confirm_deletions(waiting, node_id)

    # Leaders and replicas.

    async def alter_isr(
        self,
        topic_id: TopicId,
        partition: int,
        *,
        leader_id: NodeId,
        leader_epoch: Epoch,
        isr: Sequence[NodeId],
        partition_epoch: int,
        broker_epochs: Mapping[NodeId, int] | None = None,
    ) -> PartitionState:
        """Change the ISR for its leader; returns the new state. Raises StaleState when the partition has
        changed since, IneligibleReplica for a replica that may not join."""
        request = AlterIsr(
            topic_id=topic_id,
            partition=partition,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            isr=isr,
            broker_epochs=broker_epochs or {},
        )
        (outcome,) = await self.alter_isrs([request])
        return _or_raise(outcome)

    async def alter_isrs(self, requests: Sequence[AlterIsr]) -> list[PartitionState | MetadataError]:
        """The same for many partitions at once: for each the new state, or the error."""

        def altered(place: int, _: Image, after: Image) -> PartitionState:
            request = requests[place]
            return after.topics_by_id[request.topic_id].partitions[request.partition]

        return await self._committed.submit(requests, altered, is_local=False)

    async def elect(
        self, partitions: Sequence[tuple[str, int]], kind: ElectionKind
    ) -> list[MetadataError | None]:
        """ElectLeaders: for each topic and partition, None or the reason why there was no election."""
        commands = [ElectLeader(topic, partition, kind) for topic, partition in partitions]
        return await self._committed.submit(commands, _nothing, is_local=False)

    async def reassign(self, requests: Sequence[Reassign]) -> list[MetadataError | None]:
        """AlterPartitionReassignments: for each, None when the move has begun or ended, or the error."""
        return await self._committed.submit(requests, _nothing, is_local=False)

    async def assign_leaders(
        self, topics: Callable[[Image], Iterable[TopicState]] | None = None, *, controller_revision: int = 0
    ) -> int:
        """Elect leaders where they are missing and take lost brokers out of ISRs, in these topics or all;
        returns how many partitions changed. With a `controller_revision`, only while the controller that took
        office then is in it."""

        def plan(image: Image) -> list[PartitionUpdate]:
            chosen = image.topics.values() if topics is None else topics(image)
            return assign_leaders(image, chosen, self._policy())

        return await self._committed.update(plan, controller_revision)

    async def withdraw(
        self,
        node_id: NodeId,
        *,
        is_trusted: bool,
        is_empty: bool,
        unreachable: Collection[Replica] = (),
        lost: Collection[Replica] = (),
    ) -> int:
        """Before a broker registers, end what it led before; without trust also take it out of all ISRs."""
        return await self._committed.update(
            lambda image: withdraw_replicas(
                image,
                node_id,
                self._policy(),
                is_trusted=is_trusted,
                is_empty=is_empty,
                unreachable=unreachable,
                lost=lost,
            )
        )

    async def restore_preferred_leaders(
        self, *, imbalance_percent: int = 0, controller_revision: int = 0
    ) -> int:
        """Let first replicas lead again where they are in sync; returns how many partitions changed."""
        return await self._committed.update(
            lambda image: restore_preferred_leaders(image, imbalance_percent=imbalance_percent),
            controller_revision,
        )

    async def fill_new_brokers(self, *, partitions_max: int, controller_revision: int) -> int:
        """Begin to move replicas to new brokers, so many at once; returns how many moves began."""
        return await self._committed.update(
            lambda image: next_moves(image, self._policy(), partitions_max=partitions_max),
            controller_revision,
        )

    async def end_filling(self, node_ids: Sequence[NodeId], *, controller_revision: int) -> None:
        """Note that these brokers have their share of the replicas, or are to get no more."""
        commands = [EndFilling(node_id, controller_revision) for node_id in node_ids]
        for outcome in await self._committed.submit(commands, _nothing, is_local=False):
            _or_raise(outcome)

    async def clear_up(self, leftover: Leftover, *, controller_revision: int) -> bool:
        """Remove what an unfinished creation or deletion has left. False if somebody still works on it."""
        guard = Compare(records.CONTROLLER_KEY, controller_revision)
        try:
            for step in steps_to_clear(leftover, guard, operations_max=self._store.operations_max):
                revision = await self._store.commit(compares=step.compares, deletes=step.deletes)
                await self._committed.wait_for_revision(revision)
        except Conflict:
            return False
        return True

    # Logs on this broker's disks.

    async def adopt_logs(
        self, found: Sequence[FoundLog], *, node_id: NodeId, next_producer_id: int = 0
    ) -> list[FoundLog]:
        """Take topics from disk into a store that does not know them: it was lost, or Kafka wrote them.

        `next_producer_id` is one more than the highest id that any log knows. Returns the logs that fit no
        topic, because topics with other ids have their names. They are to be set aside, never deleted."""
        plan = plan_adoption(
            self.image, found, node_id=node_id, next_producer_id=next_producer_id, ids=self._ids
        )
        if plan.commands:
            for outcome in await self._committed.submit(plan.commands, _nothing, is_local=False):
                _or_raise(outcome)
        return plan.strays

    async def confirm_deletions(self, topic_ids: Sequence[TopicId], node_id: NodeId) -> None:
        """Note that this broker has no log of these deleted topics any more."""
        commands = [ConfirmDeletion(topic_id, node_id) for topic_id in topic_ids]
        for outcome in await self._committed.submit(commands, _nothing, is_local=False):
            _or_raise(outcome)


def _or_raise(outcome: T | MetadataError) -> T:
    if isinstance(outcome, MetadataError):
        raise outcome
    return outcome


def _nothing(_place: int, _before: Image, _after: Image) -> None:
    """For callers who want to know only whether a command was accepted."""
