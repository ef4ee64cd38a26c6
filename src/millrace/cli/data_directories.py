"""Data directories of brokers over the wire: what they hold, and moves between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millrace.cli.broker_requests import Connection, connect, connected, raise_for
from millrace.cli.clients import RequestFailed
from millrace.cli.options import BrokerAddress
from millrace.core.ids import TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millrace.wire.messages.metadata import MetadataRequest

METADATA_VERSION: Final = 12
DESCRIBE_VERSION: Final = 4
ALTER_VERSION: Final = 2


class HeldReplica(NamedTuple):
    """One replica in a data directory."""

    broker: int
    directory: str
    topic: str
    partition: int
    size_bytes: int
    lag: int
    is_arriving: bool
    """A copy that is being made of a replica in another directory of the same broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """One data directory of a broker, with the replicas in it."""

    broker: int
    path: str
    error: str | None
    total_bytes: int
    free_bytes: int
    replicas: list[HeldReplica] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        held = [replica for replica in self.replicas if not replica.is_arriving]
        return {
            "broker": self.broker,
            "directory": self.path,
            "state": self.error or "online",
            "replicas": len(held),
            "arriving": len(self.replicas) - len(held),
            "bytes": sum(replica.size_bytes for replica in self.replicas),
            "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
        }


def read(
    address: BrokerAddress, brokers: Collection[int] = (), topics: Collection[str] = ()
) -> list[Directory]:
    """The directories of these brokers, or of all, with the replicas of these topics, or of all."""
    with connected(address) as connection:
        addresses = broker_addresses(connection)
    unknown = [node_id for node_id in brokers if node_id not in addresses]
    if unknown:
        raise RequestFailed(f"brokers {unknown} are not there; running: {sorted(addresses)}")
    found = []
    for node_id in sorted(brokers or addresses):
        with broker_connection(addresses[node_id], address) as connection:
            found += directories_of(connection, node_id, topics)
    return found


def broker_addresses(connection: Connection) -> dict[int, tuple[str, int]]:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    answer = connection.ask(ApiKey.METADATA, METADATA_VERSION, request)
    return {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}


@contextmanager
def broker_connection(address: tuple[str, int], where: BrokerAddress) -> Iterator[Connection]:
    connection = connect(*address, where)
    try:
        yield connection
    finally:
        connection.close()


def directories_of(connection: Connection, node_id: int, topics: Collection[str] = ()) -> list[Directory]:
    answer = connection.ask(ApiKey.DESCRIBE_LOG_DIRS, DESCRIBE_VERSION, DescribeLogDirsRequest(topics=None))
    raise_for(answer.error_code, f"the directories of broker {node_id}")
    return [
        Directory(
            broker=node_id,
            path=result.log_dir,
            error="offline" if result.error_code else None,
            total_bytes=result.total_bytes,
            free_bytes=result.usable_bytes,
            replicas=[
                HeldReplica(
                    node_id,
                    result.log_dir,
                    topic.name,
                    partition.partition_index,
                    partition.partition_size,
                    partition.offset_lag,
                    partition.is_future_key,
                )
                for topic in result.topics
                if not topics or topic.name in topics
                for partition in topic.partitions
            ],
        )
        for result in answer.results
    ]


def move(connection: Connection, wishes: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
    """Ask a broker to keep replicas in these directories; return what it says of each."""
    by_path: dict[str, dict[str, list[int]]] = {}
    for name, path in wishes.items():
        by_path.setdefault(path, {}).setdefault(name.topic, []).append(name.partition)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name=topic, partitions=numbers)
                    for topic, numbers in topics.items()
                ],
            )
            for path, topics in by_path.items()
        ]
    )
    answer = connection.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, ALTER_VERSION, request)
    return {
        TopicPartition(topic.topic_name, result.partition_index): ErrorCode(result.error_code)
        for topic in answer.results
        for result in topic.partitions
    }
