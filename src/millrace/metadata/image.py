"""The cluster's state as one immutable value. Whoever holds an image can rely on it across an await.

An image never changes: `fold` makes a new one from the store's changes, which shares all that did not change
(see persistent_map). Nothing else may build images, so live changes and a start end in the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.core.persistent_map import PersistentMap
from millrace.metadata.security.image import EMPTY_SECURITY, SecurityImage
from millrace.metadata.store import LeaseId

NO_LEADER: Final = NodeId(-1)


class PartitionState(NamedTuple):
    """Who leads and holds one partition. A named tuple, because there are thousands of them."""

    leader: NodeId
    leader_epoch: Epoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    partition_epoch: int
    """Counts the changes of this partition: an ISR change decided on an older state is refused."""
    adding: tuple[NodeId, ...] = ()
    removing: tuple[NodeId, ...] = ()
    mod_revision: int = 0
    eligible: tuple[NodeId, ...] = ()
    """Replicas that left the ISR while it was smaller than min.insync.replicas, so that the high watermark
    has stood still since: they hold everything below it and may lead again (KIP-966). Not in `isr`."""
    last_leader: NodeId = NO_LEADER
    """Who led last, while nobody leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic with its partitions and its own settings."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]
    """What is set for this topic alone, as text."""
    internal: bool
    mod_revision: int
    """The revision of the topic's own record: its configs and partition count, not the partitions' states."""


class Endpoint(NamedTuple):
    """Where a broker says that clients of one listener reach it."""

    listener: str
    host: str
    port: int
    security_protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A broker as it registered, and what is known of it since."""

    node_id: NodeId
    incarnation: str
    """A fresh text for every start of the process."""
    rack: str | None
    endpoints: tuple[Endpoint, ...]
    directory_ids: tuple[str, ...] = ()
    epoch: int = 0
    """The store's revision of the registration; it grows with every start."""
    lease_id: LeaseId | None = None
    """The lease that the registration hangs on; to revoke it takes the broker out of the cluster at once."""
    boot_id: str = ""
    """Identifies the machine's present run, which the page cache does not survive; empty if not known."""


class Member(NamedTuple):
    """A broker that belongs to the cluster, whether it runs or not."""

    node_id: NodeId
    directory_ids: tuple[str, ...]
    boot_id: str
    mod_revision: int


class OfflineReplicas(NamedTuple):
    """The replicas that a running broker cannot serve, because their data directory has failed."""

    replicas: Mapping[TopicId, frozenset[int]]
    mod_revision: int


class DeletedTopic(NamedTuple):
    """A topic whose logs are to be deleted. Without this proof no broker deletes a log."""

    name: str
    topic_id: TopicId
    brokers: tuple[NodeId, ...]
    """The brokers that may still have logs of it."""
    mod_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """All metadata at one revision of the store. It never changes: a change makes the next image."""

    revision: int
    """The store's revision up to which everything is in here."""
    topology_revision: int
    """The last revision that changed what Metadata answers tell: brokers, controller, topics, partitions."""
    cluster_id: str
    """Empty until the cluster has one."""
    controller_id: NodeId | None
    controller_revision: int
    """The revision at which the controller took office, or 0: every change of a controller compares it."""
    brokers: Mapping[NodeId, BrokerState]
    """The brokers that run and are registered."""
    members: Mapping[NodeId, Member]
    stopping: Mapping[NodeId, int]
    """Brokers in a controlled shutdown, with the revision at which it began."""
    offline: Mapping[NodeId, OfflineReplicas]
    """Replicas in failed data directories, by broker."""
    filling: Mapping[NodeId, int]
    """New brokers that are being given their share of the replicas, with the revision at which that began."""
    topics: PersistentMap[str, TopicState]
    topics_by_id: PersistentMap[TopicId, TopicState]
    topic_names: PersistentMap[str, str]
    """From a name with underscores for dots to the topic that has it: two such topics would share metric
    names."""
    broker_configs: Mapping[NodeId, Mapping[str, str]] = field(repr=False)
    """What is set for single brokers, with their secrets among it."""
    default_broker_config: Mapping[str, str] = field(repr=False)
    group_configs: Mapping[str, Mapping[str, str]]
    """What is set for single groups, which need not exist."""
    config_revisions: Mapping[str, int]
    """The mod revision of every record of settings of brokers and groups, by key."""
    deleted_topics: PersistentMap[TopicId, DeletedTopic]
    unclaimed: PersistentMap[TopicId, Mapping[int, PartitionState]]
    """Partitions that no topic record counts, yet or any more."""
    creations: PersistentMap[TopicId, int]
    """Topics of which partitions are being made, with the revision at which that began."""
    next_producer_id: int
    producer_ids_revision: int
    security: SecurityImage
    """Permissions, roles, quotas, credentials, tokens and tenants."""

    @property
    def fenced(self) -> tuple[NodeId, ...]:
        """Members that do not run, or do not reach the store."""
        return tuple(node_id for node_id in self.members if node_id not in self.brokers)

    def offline_at(self, topic_id: TopicId, partition: int) -> frozenset[NodeId]:
        """The brokers that run and cannot serve their replica of this partition."""
        if not self.offline:
            return _NOBODY
        return frozenset(
            node_id
            for node_id, found in self.offline.items()
            if partition in found.replicas.get(topic_id, ())
        )

    def partition(self, name: str, partition: int) -> PartitionState | None:
        """The state of one partition, or None if there is no such topic or partition."""
        topic = self.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]


def collision_name(name: str) -> str:
    """What two topic names must not have in common."""
    return name.replace(".", "_")


_NOBODY: Final = frozenset[NodeId]()
_NO_MAPPING: Final = MappingProxyType[str, str]({})

EMPTY: Final = Image(
    revision=0,
    topology_revision=0,
    cluster_id="",
    controller_id=None,
    controller_revision=0,
    brokers=MappingProxyType({}),
    members=MappingProxyType({}),
    stopping=MappingProxyType({}),
    offline=MappingProxyType({}),
    filling=MappingProxyType({}),
    topics=PersistentMap(),
    topics_by_id=PersistentMap(),
    topic_names=PersistentMap(),
    broker_configs=MappingProxyType({}),
    default_broker_config=_NO_MAPPING,
    group_configs=MappingProxyType({}),
    config_revisions=MappingProxyType({}),
    deleted_topics=PersistentMap(),
    unclaimed=PersistentMap(),
    creations=PersistentMap(),
    next_producer_id=0,
    producer_ids_revision=0,
    security=EMPTY_SECURITY,
)
