"""A broker without sockets: real metadata on a store in memory, real logs on disk, and requests as bytes."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from millrace.broker.assembly.access import follow_permissions
from millrace.broker.assembly.part_settings import (
    queue_priority,
    request_settings,
    share_group_settings,
    share_settings,
    token_settings,
)
from millrace.broker.config.config import BrokerConfig
from millrace.broker.config.live import LiveConfig
from millrace.broker.handlers import APIS
from millrace.broker.handlers.services import Services
from millrace.broker.network.context import Endpoint, RequestContext
from millrace.broker.network.fetch_sessions import FetchSessions
from millrace.broker.network.lookout import Lookout
from millrace.broker.queues.end_offsets import EndOffsets
from millrace.broker.queues.persister import StatePersister
from millrace.broker.queues.share_group_states import ShareGroupStates
from millrace.broker.queues.share_partitions import SharePartitions
from millrace.broker.queues.share_sessions import ShareSessions
from millrace.broker.transactions.markers import Markers
from millrace.broker.transactions.producer_ids import ProducerIds
from millrace.core.background import Tasks
from millrace.core.clock import IdSource, SystemIdSource
from millrace.core.ids import NodeId, TopicId, TopicPartition
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer.commands import ConsumerSettings
from millrace.groups.consumer.consumers import Consumers
from millrace.groups.service import Groups, Kinds, OffsetsTopic
from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.share.share_groups import ShareGroups
from millrace.groups.streams.commands import StreamsSettings
from millrace.groups.streams.streams_groups import StreamsGroups
from millrace.log.config import LogConfig
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.directories.log_directory import LogDirectory
from millrace.log.disk.volume import DiskVolume
from millrace.log.partition.partition_log import PartitionLog
from millrace.metadata.commands import Policy
from millrace.metadata.config_definitions import BrokerLayers, TopicSettings
from millrace.metadata.image import BrokerState, TopicState
from millrace.metadata.image import Endpoint as RegisteredEndpoint
from millrace.metadata.reconciler import Reconciler
from millrace.metadata.security.delegation_tokens import DelegationTokens
from millrace.metadata.service import Metadata, NewTopic
from millrace.queues.state.commands import StateSettings
from millrace.queues.state.service import ShareState, StateTopic
from millrace.replica.partition import Partition
from millrace.replica.partitions import Partitions
from millrace.security.acls.binding import Acl
from millrace.security.acls.decisions import Decisions
from millrace.security.acls.filters import AclFilter
from millrace.security.principals import NOBODY, Identity, user
from millrace.sim.store import MemoryStore
from millrace.transactions.commands import TransactionSettings
from millrace.transactions.service import Transactions, TransactionTopic
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.records import Record, build_batch
from tests.harness.background import background

T = TypeVar("T")

NODE_ID: Final = NodeId(1)
NOW_MS: Final = 1_700_000_000_000
SHARE_SESSIONS_MAX: Final = 5
DIALLED: Final = Endpoint("broker.test", 9092, "client.test", 50_000, "PLAINTEXT")


ADMIN: Final = user("admin")
RESTRICTED: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": str(ADMIN),
}
"""The settings of a broker that checks permissions."""


def anybody(services: Services) -> Decisions:
    """What a client may do who was not asked for a name."""
    return Decisions(services.access, NOBODY, DIALLED.peer_host)


class FixedClock:
    def wall_ms(self) -> int:
        return NOW_MS


class SteppingClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class Replicas:
    """Partitions of which this broker has the only replica."""

    def __init__(
        self,
        partitions: Partitions,
        directories: LogDirectories,
        leadership_changed: Callable[[Partition], None],
    ) -> None:
        self._partitions = partitions
        self._directories = directories
        self.leadership_changed = leadership_changed
        directories.tell_of_moves(self._moved)

    async def start(self, topic: TopicState, partitions: Sequence[int], settings: TopicSettings) -> None:
        for index in partitions:
            name = TopicPartition(topic.name, index)
            log = self._directories.create(name, topic.topic_id, settings.log)
            stats = self._partitions.stats_of(topic.name)
            partition = Partition(name, topic.topic_id, log, stats, flush_wanted=lambda partition: None)
            partition.lead(NODE_ID, topic.partitions[index].leader_epoch)
            self._partitions.add(partition)
            self.leadership_changed(partition)

    def update(self, topic: TopicState, partitions: Sequence[int]) -> None:
        raise AssertionError("nothing changes leaders here")

    def configure(self, topic: TopicState, settings: TopicSettings) -> None:
        for partition in self._partitions.by_name[topic.name].values():
            partition.log.set_config(settings.log)

    async def release(self, topic: TopicState, partitions: Sequence[int]) -> None:
        raise AssertionError("nothing moves replicas here")

    async def delete(self, name: str, topic_id: TopicId) -> None:
        for index in list(self._partitions.by_id.get(topic_id, ())):
            self._partitions.remove(TopicPartition(name, index))
            self._directories.delete(TopicPartition(name, index))

    def _moved(self, original: PartitionLog, copy: PartitionLog) -> None:
        partition = self._partitions.find(*original.topic_partition)
        assert partition is not None, original.topic_partition
        partition.replace_log(copy)


def _streams_settings(configs: Mapping[str, str]) -> StreamsSettings:
    return StreamsSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0)


class Broker:
    """Answers requests one by one; between them its loop stands still."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        others: Sequence[Path] = (),
        ids: IdSource | None = None,
    ) -> None:
        ids = SystemIdSource() if ids is None else ids
        self._runner = asyncio.Runner()
        self.store = MemoryStore()
        self._static = MappingProxyType({"node.id": str(NODE_ID), **(settings or {})})
        self.log_directories = LogDirectories(
            DiskVolume(),
            [str(path) for path in (directory, *others)],
            clock=FixedClock(),
            ids=ids,
            chance=random.Random(1),
        )
        self.metadata = Metadata(
            self.store,
            policy=self._policy,
            ids=ids,
            chance=random.Random(1),
        )
        partitions = Partitions()
        self.groups = Groups(
            self.metadata,
            partitions,
            clock=FixedClock(),
            chance=random.Random(1),
            settings=GroupSettings(initial_rebalance_delay_ms=0),
            offsets_topic=OffsetsTopic(partition_count=2),
            kinds=Kinds(
                Consumers(self.metadata, ConsumerSettings(assignment_interval_ms=0)),
                (
                    ShareGroups(self.metadata, self._share_settings),
                    StreamsGroups(self.metadata, _streams_settings),
                ),
            ),
        )
        producer_ids = ProducerIds(self.metadata)
        markers = Markers(self.metadata, partitions, self.groups, FixedClock())
        self.transactions = Transactions(
            self.metadata,
            partitions,
            clock=FixedClock(),
            settings=TransactionSettings(),
            topic=TransactionTopic(partition_count=2),
            next_producer_id=producer_ids.next,
            write_marker=markers.write_for_coordinator,
        )
        self.share_state = ShareState(
            self.metadata,
            partitions,
            clock=FixedClock(),
            settings=StateSettings(),
            topic=StateTopic(partition_count=2),
        )
        self._tasks = Tasks()
        self.persister = StatePersister(
            self.share_state, None, node_id=NODE_ID, start_task=self._tasks.starter("write-share-state")
        )
        config = BrokerConfig(BrokerLayers(static=self._static))
        self.share_clock = SteppingClock()
        self.shares = SharePartitions(
            ShareSessions(SHARE_SESSIONS_MAX),
            self.persister,
            clock=self.share_clock,
            chance=random.Random(1),
            start_task=self._tasks.starter("load-share-partition"),
            settings_of=lambda group_id: share_settings(
                self.services.config, self.metadata.image.group_configs.get(group_id, {})
            ),
            priority_of=self._priority_of,
        )
        _ = self.metadata.subscribe(self.shares.metadata_changed)
        self.services = Services(
            share_state=self.share_state,
            persister=self.persister,
            shares=self.shares,
            share_groups=ShareGroupStates(
                self.groups, self.persister, self._tasks.starter("share-group-state")
            ),
            end_offsets=EndOffsets(self.metadata, partitions),
            groups=self.groups,
            transactions=self.transactions,
            markers=markers,
            producer_ids=producer_ids,
            tokens=DelegationTokens(self.metadata, token_settings(config), clock=FixedClock(), ids=ids),
            clock=FixedClock(),
            config=config,
            settings=replace(request_settings(config), fetch_bytes_max=2**20),
            metadata=self.metadata,
            partitions=partitions,
            log_directories=self.log_directories,
            fetch_sessions=FetchSessions(10, random.Random(1)),
            lookout=Lookout(float, 0.0),
            access=follow_permissions(LiveConfig(config), self.metadata),
        )
        self._life: asyncio.Task[None] | None = None

    @property
    def log_directory(self) -> LogDirectory:
        """The first of them."""
        return self.log_directories.all[0]

    def _priority_of(self, topic_id: TopicId) -> int | None:
        topic = self.metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else queue_priority(self.services.config, topic.configs)

    def _leadership_changed(self, partition: Partition) -> None:
        self.groups.runtime.leadership_changed(partition)
        self.transactions.runtime.leadership_changed(partition)
        self.share_state.runtime.leadership_changed(partition)
        self.shares.leadership_changed(partition)

    def _share_settings(self, configs: Mapping[str, str]) -> ShareGroupSettings:
        config = BrokerConfig(BrokerLayers(static=self._static))
        return replace(share_group_settings(config, configs), assignment_interval_ms=0)

    def _policy(self) -> Policy:
        return self.services.config.policy()

    def start(self) -> None:
        self.run(self._start())

    def stop(self) -> None:
        self.run(self._stop())
        self._runner.close()

    def run(self, work: Awaitable[T]) -> T:
        async def finish() -> T:
            async with asyncio.timeout(10):
                return await work

        return self._runner.run(finish())

    def ask(
        self,
        request: Any,
        version: int,
        endpoint: Endpoint = DIALLED,
        *,
        as_user: str | None = None,
        identity: Identity = NOBODY,
    ) -> Any:
        """The response as a client of that version reads it, who has shown to be that user, or of this
        identity."""
        key = _api_key(request)
        api = next(api for api in APIS if api.key == key)
        assert api.versions[0] <= version <= api.versions[1], (api, version)
        sent = schema.request_encoder(key, version)(request)
        decoded = schema.request_decoder(key, version)(sent)
        if as_user is not None:
            identity = Identity(principal=user(as_user))
        decisions = Decisions(self.services.access, identity, endpoint.peer_host)
        context = RequestContext(version, "test", endpoint, self.services, decisions)

        async def handle() -> Any:
            answer = api.handle(context, decoded)
            return await answer if inspect.isawaitable(answer) else answer

        answer = self.run(handle())
        body = answer if isinstance(answer, bytes) else schema.response_encoder(key, version)(answer)
        return schema.response_decoder(key, version)(body)

    def allow(self, *acls: Acl) -> None:
        """Add permissions."""
        outcomes = self.run(self.metadata.security.create_acls(acls))
        assert outcomes == [None] * len(acls), outcomes

    def take_back(self, *acls: Acl) -> None:
        """Remove permissions that are there."""
        filters = [AclFilter(*acl) for acl in acls]
        assert self.run(self.metadata.security.delete_acls(filters)) == [[acl] for acl in acls]

    def create_topic(
        self, name: str, partition_count: int = 1, configs: Mapping[str, str] | None = None
    ) -> TopicState:
        topic = NewTopic(name=name, partition_count=partition_count, configs=configs or {})
        (outcome,) = self.run(self.metadata.create_topics([topic]))
        assert isinstance(outcome, TopicState), outcome
        return outcome

    def append(self, topic: str, *timestamps: int, partition: int = 0, producer_id: int = -1) -> None:
        """One batch with a record for each timestamp."""
        records = [Record(number, timestamp, b"key", b"value") for number, timestamp in enumerate(timestamps)]
        is_idempotent = producer_id >= 0
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=0 if is_idempotent else -1,
            base_sequence=0 if is_idempotent else -1,
        )

        async def append() -> None:
            found = self.services.partitions.find(topic, partition)
            assert found is not None, topic
            found.append(memoryview(bytearray(batch)), NOW_MS)

        self.run(append())

    def log_config(self, topic: str) -> LogConfig:
        found = self.services.partitions.find(topic, 0)
        assert found is not None, topic
        return found.log.config

    async def _start(self) -> None:
        started = asyncio.Event()
        self._life = asyncio.get_running_loop().create_task(self._live(started))
        waiting = asyncio.get_running_loop().create_task(started.wait())
        await asyncio.wait([self._life, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._life.done():
            await self._life

    async def _live(self, started: asyncio.Event) -> None:
        await self.log_directories.open()
        async with background() as tasks:
            await self.metadata.start(tasks)
            endpoint = RegisteredEndpoint("PLAINTEXT", "registered.test", 9092, "PLAINTEXT")
            await self.metadata.register_broker(
                BrokerState(node_id=NODE_ID, incarnation="first", rack="r1", endpoints=(endpoint,))
            )
            reconciler = Reconciler(
                self.metadata,
                Replicas(self.services.partitions, self.log_directories, self._leadership_changed),
                node_id=NODE_ID,
                static=self._static,
                on_broker_settings=self._set_layers,
            )
            await reconciler.start(tasks)
            self.groups.start(tasks)
            self.transactions.start(tasks)
            self.share_state.start(tasks)
            self.metadata.applied_by(reconciler.wait_until_applied)
            started.set()
            await asyncio.Event().wait()

    def _set_layers(self, layers: BrokerLayers) -> None:
        config = self.services.config = BrokerConfig(layers)
        fetch_bytes_max = self.services.settings.fetch_bytes_max
        self.services.settings = replace(request_settings(config), fetch_bytes_max=fetch_bytes_max)

    async def _stop(self) -> None:
        assert self._life is not None
        self._life.cancel()
        await asyncio.wait([self._life])
        await self.log_directories.close()
        await self.metadata.close()


def _api_key(request: object) -> ApiKey:
    name = type(request).__name__.removesuffix("Request")
    return next(key for key in ApiKey if schema.api_name(key) == name)
