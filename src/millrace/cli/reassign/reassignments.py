"""Plans of reassignments, and what the cluster says of them. The file format is that of Kafka's own tool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from millrace.cli.broker_requests import Connection, connect, raise_for
from millrace.cli.options import BrokerAddress
from millrace.client.errors import ConnectionFailed
from millrace.core.errors import MillraceError
from millrace.core.ids import NodeId, TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from millrace.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from millrace.wire.messages.metadata import MetadataRequest

FILE_VERSION: Final = 1
METADATA_VERSION: Final = 12

Plan = dict[TopicPartition, tuple[NodeId, ...]]


class BadPlan(MillraceError):
    """A file is no plan of reassignments, or does not fit the cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything is now."""

    racks: Mapping[NodeId, str | None]
    """The racks of the brokers that run."""
    addresses: Mapping[NodeId, tuple[str, int]]
    replicas: Plan
    leaders: Mapping[TopicPartition, int]
    in_sync: Plan


def read_layout(connection: Connection) -> Layout:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    answer = connection.ask(ApiKey.METADATA, METADATA_VERSION, request)
    partitions = [
        (TopicPartition(topic.name, partition.partition_index), partition)
        for topic in answer.topics
        for partition in topic.partitions
    ]
    return Layout(
        racks={NodeId(broker.node_id): broker.rack for broker in answer.brokers},
        addresses={NodeId(broker.node_id): (broker.host, broker.port) for broker in answer.brokers},
        replicas={name: _nodes(partition.replica_nodes) for name, partition in partitions},
        leaders={name: partition.leader_id for name, partition in partitions},
        in_sync={name: _nodes(partition.isr_nodes) for name, partition in partitions},
    )


def read_replica_sizes(
    layout: Layout, where: BrokerAddress, *, among: Collection[TopicPartition] | None = None
) -> dict[tuple[TopicPartition, NodeId], int]:
    """The bytes of each replica, of all partitions or those named; brokers that do not answer are left
    out."""
    topics: dict[str, list[int]] = {}
    for name in among or ():
        topics.setdefault(name.topic, []).append(name.partition)
    wanted = [DescribableLogDirTopic(topic=topic, partitions=numbers) for topic, numbers in topics.items()]
    request = DescribeLogDirsRequest(topics=None if among is None else wanted)
    sizes: dict[tuple[TopicPartition, NodeId], int] = {}
    if among is not None and not among:
        return sizes
    for node_id, (host, port) in layout.addresses.items():
        try:
            connection = connect(host, port, where)
        except ConnectionFailed:
            continue
        try:
            answer = connection.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, request)
        finally:
            connection.close()
        for topic in (topic for result in answer.results for topic in result.topics):
            for partition in topic.partitions:
                name = TopicPartition(topic.name, partition.partition_index)
                sizes[name, node_id] = partition.partition_size
    return sizes


def sizes_of_leaders(
    layout: Layout, sizes: Mapping[tuple[TopicPartition, NodeId], int]
) -> dict[TopicPartition, int]:
    """The bytes of each partition, as its leader has them."""
    return {name: size for (name, node_id), size in sizes.items() if layout.leaders.get(name) == node_id}


def bytes_to_move(layout: Layout, plan: Plan, sizes: Mapping[TopicPartition, int]) -> dict[NodeId, int]:
    """Bytes to copy to each broker that gets new replicas."""
    moved: dict[NodeId, int] = {}
    for name, nodes in plan.items():
        for node_id in nodes:
            if node_id not in layout.replicas[name]:
                moved[node_id] = moved.get(node_id, 0) + sizes.get(name, 0)
    return moved


def write_plan(
    plan: Mapping[TopicPartition, tuple[NodeId, ...]],
    places: Mapping[tuple[TopicPartition, NodeId], str] | None = None,
) -> str:
    """The plan as text, with a data directory for each replica for which one is given."""
    entries = []
    for name, nodes in sorted(plan.items()):
        entry: dict[str, Any] = {"topic": name.topic, "partition": name.partition, "replicas": list(nodes)}
        if places and any((name, node_id) in places for node_id in nodes):
            entry["log_dirs"] = [places.get((name, node_id), "any") for node_id in nodes]
        entries.append(entry)
    document = {"version": FILE_VERSION, "partitions": entries}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"


def read_plan(path: Path) -> Plan:
    try:
        document = orjson.loads(path.read_bytes())
    except ValueError as error:
        raise BadPlan(f"{path} is not JSON: {error}") from error
    try:
        if document["version"] != FILE_VERSION:
            raise BadPlan(f"{path} has version {document['version']!r}, {FILE_VERSION} is known")
        plan = {}
        for entry in document["partitions"]:
            name = TopicPartition(str(entry["topic"]), int(entry["partition"]))
            if name in plan:
                raise BadPlan(f"{path} names {name} twice")
            plan[name] = _nodes(entry["replicas"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadPlan(
            f'{path} is no plan: expected {{"version": 1, "partitions": [{{"topic": ..., "partition": ..., '
            f'"replicas": [...]}}]}}, and something is wrong at {error}'
        ) from error
    return plan


def check_plan(plan: Plan, layout: Layout) -> None:
    """Refuse what does not fit the cluster, before anything moves."""
    for name, nodes in plan.items():
        if name not in layout.replicas:
            raise BadPlan(f"there is no partition {name}")
        unknown = [node_id for node_id in nodes if node_id not in layout.racks]
        if unknown:
            raise BadPlan(f"{name}: brokers {unknown} are not there; running: {sorted(layout.racks)}")


def submit(connection: Connection, plan: Mapping[TopicPartition, tuple[NodeId, ...] | None]) -> list[str]:
    """Begin the moves, or with None cancel them; return what was refused, in words."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for name, nodes in plan.items():
        replicas = None if nodes is None else [int(node_id) for node_id in nodes]
        topics.setdefault(name.topic, []).append(
            ReassignablePartition(partition_index=name.partition, replicas=replicas)
        )
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()]
    )
    answer = connection.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, request)
    raise_for(answer.error_code, "the reassignment")
    return [
        f"{topic.name}-{result.partition_index}: "
        f"{result.error_message or ErrorCode(result.error_code).message}"
        for topic in answer.responses
        for result in topic.partitions
        if result.error_code
    ]


def moving(connection: Connection) -> dict[TopicPartition, Any]:
    """The partitions that move now."""
    answer = connection.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(topics=None)
    )
    raise_for(answer.error_code, "the list of reassignments")
    return {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }


def _nodes(ids: Any) -> tuple[NodeId, ...]:
    return tuple(NodeId(int(node_id)) for node_id in ids)
