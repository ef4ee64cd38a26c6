"""What handlers get beside the request: the services that they may call, and the settings of requests. The
assembly builds it once for all requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.broker.handlers.cluster.answer_cache import AnswerCache
from millrace.broker.handlers.produce.deduplication import Deduplication
from millrace.broker.handlers.produce.staging import Staging
from millrace.broker.network.deadlines import Deadlines
from millrace.broker.network.recognition import Recognition
from millrace.broker.network.throttling import Throttling
from millrace.broker.network.wakeups import Wakeups
from millrace.core.ids import NodeId
from millrace.security.acls.decisions import Access
from millrace.wire.error_codes import ErrorCode
from millrace.wire.framing import NodeEndpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millrace.broker.config.config import BrokerConfig
    from millrace.broker.network.fetch_sessions import FetchSessions
    from millrace.broker.network.lookout import Lookout
    from millrace.broker.queues.end_offsets import EndOffsets
    from millrace.broker.queues.persister import Persister
    from millrace.broker.queues.share_group_states import ShareGroupStates
    from millrace.broker.queues.share_partitions import SharePartitions
    from millrace.broker.replication.failovers import Failovers
    from millrace.broker.replication.replica_sessions import ReplicaSessions
    from millrace.broker.tenant_storage import TenantStorage
    from millrace.broker.transactions.markers import Markers
    from millrace.broker.transactions.producer_ids import ProducerIds
    from millrace.broker.transactions.remote_transactions import RemoteTransactions
    from millrace.core.clock import Clock
    from millrace.core.errors import MillraceError
    from millrace.core.ids import TopicId
    from millrace.groups.service import Groups
    from millrace.log.directories.log_directories import LogDirectories
    from millrace.metadata.security.delegation_tokens import DelegationTokens
    from millrace.metadata.service import Metadata
    from millrace.queues.delayed.model import DelayedStore
    from millrace.queues.state.service import ShareState
    from millrace.replica.partition import Partition
    from millrace.replica.partitions import Partitions
    from millrace.transactions.service import Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What the configuration says about single requests."""

    fetch_bytes_max: int
    """The bound on one answer to a fetch, whatever the client asks for."""
    paces_fetches: bool
    """Whether answers to consumers that would stop asking are held back (`network/pace.py`)."""
    creates_topics: bool
    """Whether a client that asks for an unknown topic gets a new one."""
    described_partitions_max: int
    """The bound on one answer to DescribeTopicPartitions."""
    reads_from_followers: bool
    """Whether consumers are sent to a follower in their rack."""
    listener_between_brokers: str
    """The name of the listener on which the other brokers come."""
    dedup_ids_max: int
    """How many ids of records are remembered for all topics that store each id once."""


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of a broker that handlers use. A handler calls them and shapes the response."""

    clock: Clock
    config: BrokerConfig
    """The configuration that counts now, replaced whenever the metadata's settings for brokers change.
    Handlers that describe or alter settings look at its layers; what others need of it is in `settings`."""
    settings: RequestSettings
    """Replaced together with `config`."""
    metadata: Metadata
    partitions: Partitions
    log_directories: LogDirectories
    fetch_sessions: FetchSessions
    lookout: Lookout
    groups: Groups
    transactions: Transactions
    markers: Markers
    producer_ids: ProducerIds
    share_state: ShareState
    persister: Persister
    """Where share partitions keep their state, here or with another broker's coordinator."""
    shares: SharePartitions
    share_groups: ShareGroupStates
    """Whatever share groups do that their partitions' state has a part in."""
    end_offsets: EndOffsets
    tokens: DelegationTokens
    replica_sessions: ReplicaSessions | None = None
    """The followers of this broker; None where there is only one broker."""
    remote_transactions: RemoteTransactions | None = None
    failovers: Failovers | None = None
    """None where there is only one broker."""
    access: Access = field(default_factory=Access)
    """The rules of this moment on who may do what."""
    tenant_storage: TenantStorage | None = None
    """Which tenants may store no more; None where nobody looks."""
    delayed_store: DelayedStore | None = None
    """Where records wait that are to be delivered later; None where there is no such place."""
    throttling: Throttling = field(default_factory=Throttling)
    """What clients may take of this broker."""
    wakeups: Wakeups = field(default_factory=Wakeups)
    deadlines: Deadlines = field(default_factory=Deadlines)
    metadata_answers: AnswerCache = field(default_factory=AnswerCache)
    staging: Staging = field(init=False)
    deduplication: Deduplication = field(init=False)
    recognition: Recognition = field(init=False)

    def __post_init__(self) -> None:
        self.staging = Staging(self.wakeups)
        self.deduplication = Deduplication(self.partitions, self.clock, self.settings.dedup_ids_max)
        world = self.partitions.world
        self.recognition = Recognition(world, access=self.access)
        _ = self.metadata.subscribe(lambda _old, _new: world.changed())
        self.access.watch(self._permissions_changed)
        if self.groups.consumers is not None:
            self.groups.consumers.judged_by(self.access)

    def _permissions_changed(self) -> None:
        """Nothing that was found out before counts any more; who waits for records is judged anew."""
        self.metadata_answers.forget()
        self.partitions.world.changed()
        for partition in self.partitions:
            for waiter in list(partition.fetch_waiters):
                waiter.permissions_changed()
        self.shares.permissions_changed()
        if self.replica_sessions is not None:
            for session in self.replica_sessions.sessions:
                if session.waiting is not None:
                    session.waiting.permissions_changed()

    def storage_refusal(self, topic: str) -> MillraceError | None:
        """Why its tenant may not write to a topic at present; None if it may."""
        return None if self.tenant_storage is None else self.tenant_storage.refusal(topic)

    def absent_partition_error(self, topic: str, partition: int) -> ErrorCode:
        """Why a partition that a request names is not held here."""
        known = self.metadata.image.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        directories = self.log_directories
        if (known.topic_id, partition) in directories.unreachable or directories.offline_reason is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def absence(self, topic: str, topic_id: TopicId | None, partition: int) -> ErrorCode:
        """As `absent_partition_error`, for a topic that is named by its id, or by its name where it has no
        id."""
        if topic_id is None:
            return self.absent_partition_error(topic, partition)
        known = self.metadata.image.topics_by_id.get(topic_id)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return self.absent_partition_error(known.name, partition)

    def endpoints_of(self, leaders: Iterable[int], listener: str) -> list[NodeEndpoint]:
        """Where clients of a listener find these brokers."""
        brokers = self.metadata.image.brokers
        found = []
        for node_id in dict.fromkeys(leaders):
            broker = brokers.get(NodeId(node_id))
            for endpoint in () if broker is None else broker.endpoints:
                if endpoint.listener == listener:
                    assert broker is not None
                    found.append(NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack))
        return found

    def read_replica(self, partition: Partition, rack: str, offset: int) -> int:
        """A follower in the client's rack that has what it asks for; -1 if the leader is to serve it."""
        leadership = partition.leadership
        brokers = self.metadata.image.brokers
        if leadership is None or not self.settings.reads_from_followers:
            return -1
        own = brokers.get(NodeId(leadership.node_id))
        if own is not None and own.rack == rack:
            return -1
        for follower in leadership.followers:
            broker = brokers.get(NodeId(follower.node_id))
            if (
                broker is not None
                and broker.rack == rack
                and follower.node_id in leadership.isr
                and follower.log_start_offset <= offset <= follower.log_end_offset
            ):
                return follower.node_id
        return -1

    def current_leader(self, topic: str, topic_id: TopicId | None, partition: int) -> tuple[int, int] | None:
        """Leader and leader epoch, for a client that asked the wrong broker; None if nobody leads."""
        image = self.metadata.image
        known = image.topics.get(topic) if topic_id is None else image.topics_by_id.get(topic_id)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        state = known.partitions[partition]
        return (state.leader, state.leader_epoch) if state.leader >= 0 else None

    def leader_elsewhere(self, partition: Partition) -> tuple[int, int] | None:
        """As `current_leader`, for a partition that this broker leads no more; None while its successor is
        not known."""
        leader = self.current_leader(partition.topic, partition.topic_id, partition.index)
        return None if leader is None or leader[0] == self.config.node_id else leader
