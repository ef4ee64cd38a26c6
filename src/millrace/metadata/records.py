"""The keys of the store and the bytes under them. A record is JSON; fields may be added, none change their
meaning.

A topic's record is the commit point of the topic: partitions are written before it and removed after it, and
count only up to the number that it names. So a change of many partitions may take several transactions.
A creation in several transactions begins with a record of its own, which its last transaction compares and
removes. Otherwise clearing up unfinished creations could take partitions of one that still goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from millrace.core.ids import NodeId, TopicId, format_topic_id, parse_topic_id
from millrace.metadata.image import (
    NO_LEADER,
    BrokerState,
    DeletedTopic,
    Endpoint,
    Member,
    OfflineReplicas,
    PartitionState,
    collision_name,
)
from millrace.metadata.store import LeaseId

CLUSTER_KEY: Final = "cluster"
CONTROLLER_KEY: Final = "controller"
PRODUCER_IDS_KEY: Final = "producer_ids"
DEFAULT_BROKER_CONFIG_KEY: Final = "configs/brokers/default"

STATES_KEPT_MAX: Final = 1_000
"""So many decoded states are kept: in a failover of thousands of partitions, each revision brings a few."""

TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"
BROKERS: Final = "brokers/"
MEMBERS: Final = "members/"
STOPPING: Final = "stopping/"
FILLING: Final = "filling/"
OFFLINE: Final = "offline/"
BROKER_CONFIGS: Final = "configs/brokers/"
GROUP_CONFIGS: Final = "configs/groups/"
DELETED_TOPICS: Final = "deleted_topics/"
NAME_GUARDS: Final = "topic_name_guards/"
CREATIONS: Final = "creations/"


def topic_key(name: str) -> str:
    return TOPICS + name


def name_guard_key(name: str) -> str | None:
    """A key that only one of the topics can have whose names differ in nothing but '.' and '_'."""
    return NAME_GUARDS + collision_name(name) if "." in name or "_" in name else None


def partition_key(topic_id: TopicId, partition: int) -> str:
    return f"{PARTITIONS}{format_topic_id(topic_id)}/{partition}"


def partition_of_key(key: str) -> tuple[TopicId, int]:
    topic_id, _, partition = key.removeprefix(PARTITIONS).partition("/")
    return parse_topic_id(topic_id), int(partition)


def creation_key(topic_id: TopicId) -> str:
    """The key that exists while partitions are written that the topic's record does not count yet."""
    return CREATIONS + format_topic_id(topic_id)


def broker_key(node_id: int) -> str:
    return f"{BROKERS}{node_id}"


def member_key(node_id: int) -> str:
    return f"{MEMBERS}{node_id}"


def stopping_key(node_id: int) -> str:
    """The key that exists during the broker's controlled shutdown, under the lease of its registration."""
    return f"{STOPPING}{node_id}"


def filling_key(node_id: int) -> str:
    """The key that exists from a broker's first registration until it has its share of the replicas, if new
    brokers get one."""
    return f"{FILLING}{node_id}"


def offline_key(node_id: int) -> str:
    """The key of a broker's replicas in failed data directories, under the lease of its registration."""
    return f"{OFFLINE}{node_id}"


def broker_config_key(node_id: int | None) -> str:
    """The key of one broker's settings, or of those for all brokers."""
    return DEFAULT_BROKER_CONFIG_KEY if node_id is None else f"{BROKER_CONFIGS}{node_id}"


def group_config_key(group_id: str) -> str:
    return GROUP_CONFIGS + group_id


def deleted_topic_key(topic_id: TopicId) -> str:
    return DELETED_TOPICS + format_topic_id(topic_id)


def encode_cluster(cluster_id: str) -> bytes:
    return orjson.dumps({"id": cluster_id})


def decode_cluster(value: bytes) -> str:
    return str(orjson.loads(value)["id"])


def encode_controller(node_id: int) -> bytes:
    return orjson.dumps({"node": node_id})


def decode_controller(value: bytes) -> NodeId:
    return NodeId(orjson.loads(value)["node"])


def encode_producer_ids(next_producer_id: int) -> bytes:
    return orjson.dumps({"next": next_producer_id})


def decode_producer_ids(value: bytes) -> int:
    return int(orjson.loads(value)["next"])


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return orjson.dumps(dict(configs))


def decode_configs(value: bytes) -> dict[str, str]:
    configs: dict[str, str] = orjson.loads(value)
    return configs


def encode_topic(topic_id: TopicId, partition_count: int, configs: Mapping[str, str]) -> bytes:
    return orjson.dumps(
        {"id": format_topic_id(topic_id), "partitions": partition_count, "configs": dict(configs)}
    )


def decode_topic(value: bytes) -> tuple[TopicId, int, dict[str, str]]:
    record = orjson.loads(value)
    return parse_topic_id(record["id"]), record["partitions"], record["configs"]


def encode_partition(state: PartitionState) -> bytes:
    record: dict[str, Any] = {
        "leader": state.leader,
        "epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "partition_epoch": state.partition_epoch,
    }
    if state.adding:
        record["adding"] = state.adding
    if state.removing:
        record["removing"] = state.removing
    if state.eligible:
        record["eligible"] = state.eligible
    if state.last_leader != NO_LEADER:
        record["last_leader"] = state.last_leader
    return orjson.dumps(record)


@lru_cache(maxsize=STATES_KEPT_MAX)
def decode_partition(value: bytes, mod_revision: int) -> PartitionState:
    """The state in a record. Partitions that changed together often share one object."""
    record = orjson.loads(value)
    replicas = _nodes(record["replicas"])
    isr = _nodes(record["isr"])
    return PartitionState(
        leader=record["leader"],
        leader_epoch=record["epoch"],
        replicas=replicas,
        # The usual case: this saves a tuple for each of thousands of partitions.
        isr=replicas if isr == replicas else isr,
        partition_epoch=record["partition_epoch"],
        adding=_nodes(record.get("adding", ())),
        removing=_nodes(record.get("removing", ())),
        mod_revision=mod_revision,
        eligible=_nodes(record.get("eligible", ())),
        last_leader=record.get("last_leader", NO_LEADER),
    )


def encode_broker(broker: BrokerState) -> bytes:
    record: dict[str, Any] = {
        "incarnation": broker.incarnation,
        "rack": broker.rack,
        "directories": broker.directory_ids,
        "endpoints": [endpoint._asdict() for endpoint in broker.endpoints],
    }
    if broker.lease_id is not None:
        record["lease"] = broker.lease_id
    if broker.boot_id:
        record["boot"] = broker.boot_id
    return orjson.dumps(record)


def decode_broker(node_id: int, value: bytes, mod_revision: int) -> BrokerState:
    record = orjson.loads(value)
    return BrokerState(
        node_id=NodeId(node_id),
        incarnation=record["incarnation"],
        rack=record["rack"],
        directory_ids=tuple(record["directories"]),
        endpoints=tuple(
            Endpoint(
                listener=endpoint["listener"],
                host=endpoint["host"],
                port=endpoint["port"],
                security_protocol=endpoint["security_protocol"],
            )
            for endpoint in record["endpoints"]
        ),
        epoch=mod_revision,
        lease_id=None if (lease := record.get("lease")) is None else LeaseId(lease),
        boot_id=record.get("boot", ""),
    )


def encode_member(broker: BrokerState) -> bytes:
    return orjson.dumps({"directories": broker.directory_ids, "boot": broker.boot_id})


def decode_member(node_id: int, value: bytes, mod_revision: int) -> Member:
    record = orjson.loads(value)
    return Member(NodeId(node_id), tuple(record["directories"]), record["boot"], mod_revision)


def encode_offline(replicas: Mapping[TopicId, Iterable[int]]) -> bytes:
    return orjson.dumps(
        {format_topic_id(topic_id): sorted(numbers) for topic_id, numbers in replicas.items()}
    )


def decode_offline(value: bytes, mod_revision: int) -> OfflineReplicas:
    record = orjson.loads(value)
    return OfflineReplicas(
        {parse_topic_id(topic_id): frozenset(numbers) for topic_id, numbers in record.items()}, mod_revision
    )


def encode_deleted_topic(name: str, brokers: Sequence[int]) -> bytes:
    return orjson.dumps({"name": name, "brokers": list(brokers)})


def decode_deleted_topic(topic_id: TopicId, value: bytes, mod_revision: int) -> DeletedTopic:
    record = orjson.loads(value)
    return DeletedTopic(record["name"], topic_id, _nodes(record["brokers"]), mod_revision)


def _nodes(ids: Iterable[int]) -> tuple[NodeId, ...]:
    nodes: tuple[NodeId, ...] = tuple(ids)  # type: ignore[arg-type]  # NodeId() would be a call for each
    return _SINGLE.setdefault(nodes, nodes) if len(nodes) <= 1 else nodes


# On a single broker all partitions have the same replicas: one tuple serves them all.
_SINGLE: Final[dict[tuple[NodeId, ...], tuple[NodeId, ...]]] = {}
