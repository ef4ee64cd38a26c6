"""A small blocking client of a whole cluster, for programs without a loop such as tasks of Spark.

It owns the connections of one process and the view of the cluster. It is not for several threads, and it
never sends a request twice by itself except where asking again is harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from millrace.client import fetch_frames
from millrace.client.blocking_connection import BlockingConnection
from millrace.client.errors import BrokerRefused, ConnectionClosed, ConnectionFailed, refuse
from millrace.client.fetch_frames import RawFetch
from millrace.client.opening import ServedVersions
from millrace.client.security import PLAINTEXT, SecurityOptions
from millrace.client.servers import READ_COMMITTED, READ_UNCOMMITTED, parse_servers
from millrace.core.ids import TopicId, TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = [
    "EARLIEST",
    "GROUP",
    "LATEST",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "TRANSACTION",
    "BrokerClient",
    "ListedOffset",
    "PartitionInfo",
    "RawFetch",
    "TopicInfo",
    "parse_servers",
]

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
"""Special timestamps of `list_offsets`."""
GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of coordinators."""

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_SOFTWARE: Final = "millrace-pipeline"
"""As brokers count clients by it."""
_CONSUMER: Final = -1
"""The replica id of whoever is no replica."""

# The newest version of each API that this client's calls are written for.
_METADATA_VERSIONS: Final = (10, 12)
_LIST_OFFSETS_VERSIONS: Final = (4, 8)
_FIND_COORDINATOR_VERSIONS: Final = (4, 4)
_OFFSET_COMMIT_VERSIONS: Final = (7, 9)
_OFFSET_FETCH_VERSIONS: Final = (8, 9)
_OFFSET_FOR_LEADER_EPOCH_VERSIONS: Final = (3, 4)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    leader: int
    """The leader's node id, -1 where there is none at the moment."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the brokers describe it."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


class ListedOffset(NamedTuple):
    """What a partition's leader says of a moment."""

    offset: int
    """-1 where no record is as young as asked for."""
    timestamp: int
    leader_epoch: int


class BrokerClient:
    """Connections to the brokers of one cluster, made on first use; closed by `close` or a with statement."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "millrace-pipeline",
        security: SecurityOptions = PLAINTEXT,
        timeout_ms: int = 30_000,
    ) -> None:
        self._bootstrap = parse_servers(bootstrap)
        self._client_id = client_id
        self._security = security
        self._tls = security.tls_context()
        self.timeout_ms = timeout_ms
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._connections: dict[tuple[str, int], BlockingConnection] = {}
        self._versions: dict[tuple[str, int], ServedVersions] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Requests of any kind.

    def request(self, api_key: int, version: int, message: object, node_id: int | None = None) -> Any:
        """Send one request to a broker (None: whichever answers) and return the decoded response.

        Error codes inside the response are the caller's business. ConnectionFailed says that no answer came:
        the broker may have done what was asked or not.
        """
        address, connection = self._connection(node_id)
        try:
            return connection.ask(api_key, version, message)
        except ConnectionFailed:
            self._drop(address)
            raise

    def version(self, api_key: int, at_least: int, at_most: int, node_id: int | None = None) -> int:
        """The newest version within bounds that the broker serves; UnsupportedBroker if there is none."""
        address, _ = self._connection(node_id)
        return self._versions[address].newest(api_key, at_least, at_most)

    def retrying(self, operation: Callable[[], T]) -> T:
        """Repeat `operation` while it fails in a way that passes, for as long as the timeout allows."""
        deadline = time.monotonic() + self.timeout_ms / 1000
        delay = _BACKOFF_FIRST_S
        while True:
            try:
                return operation()
            except ConnectionFailed:
                self._leaders.clear()
                if time.monotonic() + delay >= deadline:
                    raise
            except BrokerRefused as refused:
                self._leaders.clear()
                if not refused.retriable or time.monotonic() + delay >= deadline:
                    raise
            time.sleep(delay)
            delay = min(2 * delay, _BACKOFF_MAX_S)

    # The view of the cluster.

    def metadata(self, topics: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        """The topics named, or all; those that do not exist are left out. Never creates a topic."""
        names = None if topics is None else list(topics)
        return self.retrying(lambda: self._metadata(names))

    def any_node(self) -> int:
        """The node id of a broker that is in the cluster now."""
        if not self._addresses:
            self._metadata([])
        return min(self._addresses)

    def nodes(self) -> dict[int, tuple[str, int]]:
        """Host and port of every broker that is in the cluster now, by node id."""
        self.retrying(lambda: self._metadata([]))
        return dict(sorted(self._addresses.items()))

    def leader(self, partition: TopicPartition) -> int:
        """The node id of a partition's leader; BrokerRefused (retriable) while there is none."""
        leader = self._leaders.get(partition, -1)
        if leader < 0:
            self._metadata([partition.topic])
            leader = self._leaders.get(partition, -1)
        if leader < 0:
            raise BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return leader

    def forget_leader(self, partition: TopicPartition) -> None:
        self._leaders.pop(partition, None)

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The node id of the coordinator of a group or, with TRANSACTION, of a transactional id."""
        return self.retrying(lambda: self._coordinator(key, kind))

    # Offsets.

    def list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: int = READ_COMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """For each partition the first offset at or after a timestamp in ms, or EARLIEST, or LATEST.

        With READ_COMMITTED, LATEST is the last stable offset: all below it is decided.
        """
        return self.retrying(lambda: self._list_offsets(asked, isolation))

    def epoch_end_offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """For each partition and leader epoch: the newest epoch not above it and the offset where it ends."""
        return self.retrying(lambda: self._epoch_end_offsets(asked))

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """A group's committed offsets; partitions without one are left out."""
        wanted = list(partitions)
        return self.retrying(lambda: self._committed(group, wanted))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets for a group without members."""
        self.retrying(lambda: self._commit(group, offsets, metadata))

    # Records.

    def fetch_raw(
        self,
        topic_id: TopicId,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int = 4 << 20,
        isolation: int = READ_COMMITTED,
        max_wait_ms: int = 500,
    ) -> RawFetch:
        """Whole batches from the one that holds `offset`; the bytes are valid until the next fetch.

        Raises BrokerRefused for a partition's error. Tasks that read a lot keep a connection of their own
        and use `fetch_frames` straight, to have the next answer on its way while they decode.
        """
        node_id = self.leader(partition)
        version = self.version(ApiKey.FETCH, *fetch_frames.VERSIONS, node_id)
        body = fetch_frames.encode_request(
            topic_id,
            partition.partition,
            offset,
            max_bytes=max_bytes,
            isolation=isolation,
            max_wait_ms=max_wait_ms,
            version=version,
        )
        address, connection = self._connection(node_id)
        try:
            answer = connection.receive(connection.send(ApiKey.FETCH, version, body))
        except ConnectionFailed:
            self._drop(address)
            raise
        return fetch_frames.decode_response(answer, str(partition))

    def connect_to_leader(self, partition: TopicPartition) -> tuple[BlockingConnection, int]:
        """A connection to the leader that this client no longer owns, and the Fetch version to use on it."""
        node_id = self.leader(partition)
        version = self.version(ApiKey.FETCH, *fetch_frames.VERSIONS, node_id)
        address, connection = self._connection(node_id)
        del self._connections[address]
        return connection, version

    # One attempt of each.

    def _metadata(self, names: Sequence[str] | None) -> dict[str, TopicInfo]:
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        version = self.version(ApiKey.METADATA, *_METADATA_VERSIONS)
        response = self.request(ApiKey.METADATA, version, message)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        found: dict[str, TopicInfo] = {}
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            refuse(topic.error_code, f"topic {topic.name}")
            partitions: dict[int, PartitionInfo] = {}
            for each in sorted(topic.partitions, key=lambda part: part.partition_index):
                partitions[each.partition_index] = PartitionInfo(each.leader_id, each.leader_epoch)
                self._leaders[TopicPartition(topic.name, each.partition_index)] = each.leader_id
            found[topic.name] = TopicInfo(topic.name, TopicId(topic.topic_id), topic.is_internal, partitions)
        return found

    def _coordinator(self, key: str, kind: int) -> int:
        message = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        version = self.version(ApiKey.FIND_COORDINATOR, *_FIND_COORDINATOR_VERSIONS)
        response = self.request(ApiKey.FIND_COORDINATOR, version, message)
        (found,) = response.coordinators
        refuse(found.error_code, f"coordinator of {key}")
        self._addresses[found.node_id] = (found.host, found.port)
        return int(found.node_id)

    def _list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]:
        found: dict[TopicPartition, ListedOffset] = {}
        for node_id, partitions in self._by_leader(asked).items():
            topics = [
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=each.partition, timestamp=asked[each])
                        for each in members
                    ],
                )
                for name, members in _by_topic(partitions).items()
            ]
            message = ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=isolation, topics=topics)
            version = self.version(ApiKey.LIST_OFFSETS, *_LIST_OFFSETS_VERSIONS, node_id)
            response = self.request(ApiKey.LIST_OFFSETS, version, message, node_id)
            for topic in response.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    refuse(each.error_code, f"offsets of {partition}")
                    found[partition] = ListedOffset(each.offset, each.timestamp, each.leader_epoch)
        return found

    def _epoch_end_offsets(
        self, asked: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        found: dict[TopicPartition, tuple[int, int]] = {}
        for node_id, partitions in self._by_leader(asked).items():
            topics = [
                OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        OffsetForLeaderPartition(partition=each.partition, leader_epoch=asked[each])
                        for each in members
                    ],
                )
                for name, members in _by_topic(partitions).items()
            ]
            message = OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)
            version = self.version(
                ApiKey.OFFSET_FOR_LEADER_EPOCH, *_OFFSET_FOR_LEADER_EPOCH_VERSIONS, node_id
            )
            response = self.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, message, node_id)
            for topic in response.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.topic, each.partition)
                    refuse(each.error_code, f"epochs of {partition}")
                    found[partition] = (each.leader_epoch, each.end_offset)
        return found

    def _committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        node_id = self._coordinator(group, GROUP)
        topics = [
            OffsetFetchRequestTopics(name=name, partition_indexes=[each.partition for each in members])
            for name, members in _by_topic(partitions).items()
        ]
        message = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True
        )
        version = self.version(ApiKey.OFFSET_FETCH, *_OFFSET_FETCH_VERSIONS, node_id)
        response = self.request(ApiKey.OFFSET_FETCH, version, message, node_id)
        found: dict[TopicPartition, int] = {}
        for answer in response.groups:
            refuse(answer.error_code, f"group {group}")
            for topic in answer.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    refuse(each.error_code, f"offset of group {group} for {partition}")
                    if each.committed_offset >= 0:
                        found[partition] = each.committed_offset
        return found

    def _commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        node_id = self._coordinator(group, GROUP)
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition,
                        committed_offset=offsets[each],
                        committed_metadata=metadata,
                    )
                    for each in members
                ],
            )
            for name, members in _by_topic(offsets).items()
        ]
        message = OffsetCommitRequest(group_id=group, topics=topics)
        version = self.version(ApiKey.OFFSET_COMMIT, *_OFFSET_COMMIT_VERSIONS, node_id)
        response = self.request(ApiKey.OFFSET_COMMIT, version, message, node_id)
        for topic in response.topics:
            for each in topic.partitions:
                refuse(each.error_code, f"commit of group {group} for {topic.name}-{each.partition_index}")

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        wanted = list(partitions)
        unknown = {each.topic for each in wanted if self._leaders.get(each, -1) < 0}
        if unknown:
            self._metadata(sorted(unknown))
        groups: dict[int, list[TopicPartition]] = {}
        for each in wanted:
            groups.setdefault(self.leader(each), []).append(each)
        return groups

    # Connections.

    def _connection(self, node_id: int | None) -> tuple[tuple[str, int], BlockingConnection]:
        if node_id is not None:
            address = self._addresses.get(node_id)
            if address is None:
                self._metadata([])
                address = self._addresses.get(node_id)
            if address is None:
                raise ConnectionFailed(f"broker {node_id} is not in the cluster at the moment")
            return address, self._connections.get(address) or self._open(address)
        for address, connection in self._connections.items():
            return address, connection
        failures: list[str] = []
        for address in self._bootstrap:
            try:
                return address, self._open(address)
            except ConnectionFailed as failure:
                failures.append(str(failure))
        raise ConnectionFailed("; ".join(failures))

    def _open(self, address: tuple[str, int]) -> BlockingConnection:
        connection = BlockingConnection(
            *address, client_id=self._client_id, timeout_s=self.timeout_ms / 1000, tls=self._tls
        )
        try:
            self._versions[address] = connection.open_with(_SOFTWARE, self._security).versions
        except BaseException as error:
            connection.close()
            if isinstance(error, ConnectionClosed):
                # What a listener does that was expected to speak plainly, or without a login.
                hint = "if its listener uses TLS or SASL, set security.protocol"
                raise ConnectionFailed(f"{error}; {hint}") from error
            raise
        self._connections[address] = connection
        return connection

    def _drop(self, address: tuple[str, int]) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for each in partitions:
        topics.setdefault(each.topic, []).append(each)
    return topics
