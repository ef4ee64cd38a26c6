"""Throttles of moves: set before they begin, removed when they are done. The settings are Kafka's, so that
its own tool may change and remove them too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace.cli.broker_requests import Connection, connect
from millrace.cli.clients import RequestFailed
from millrace.cli.options import BrokerAddress
from millrace.cli.reassign.reassignments import Layout, Plan
from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.config_definitions.throttled_replicas import EVERY
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_TOPIC: Final = 2
_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1

Pairs = dict[str, None]
"""`partition:broker`, in order."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The replicas of one topic that a plan holds to the rate."""

    leaders: Pairs
    followers: Pairs


def throttled_replicas(
    plan: Plan, layout: Layout, moving: Mapping[TopicPartition, Any]
) -> dict[str, Throttled]:
    """Replicas by topic: a broker that has one may have to send it, one that is to get it fetches it."""
    topics: dict[str, Throttled] = {}
    for name, target in plan.items():
        under_way = moving.get(name)
        adding = () if under_way is None else under_way.adding_replicas
        sources = [node_id for node_id in layout.replicas.get(name, ()) if node_id not in adding]
        new = [node_id for node_id in target if node_id not in sources]
        if not new:
            continue
        throttled = topics.setdefault(name.topic, Throttled({}, {}))
        throttled.leaders.update((f"{name.partition}:{node_id}", None) for node_id in sources)
        throttled.followers.update((f"{name.partition}:{node_id}", None) for node_id in new)
    return topics


def brokers_of(topics: Mapping[str, Throttled]) -> list[NodeId]:
    """The brokers that take part in the moves."""
    pairs = (pair for topic in topics.values() for pair in (*topic.leaders, *topic.followers))
    return sorted({NodeId(int(pair.partition(":")[2])) for pair in pairs})


def set_throttles(
    connection: Connection, layout: Layout, topics: Mapping[str, Throttled], rate: int, where: BrokerAddress
) -> None:
    """Set the rate at the brokers first: without it, a replica that is named is not held back."""
    for node_id in brokers_of(topics):
        _at_broker(layout, node_id, where, {name: str(rate) for name in RATES})
    changes: dict[str, dict[str, str | None]] = {}
    for topic, present in _present(connection, topics).items():
        wanted = {
            LEADER_REPLICAS: topics[topic].leaders,
            FOLLOWER_REPLICAS: topics[topic].followers,
        }
        changes[topic] = {
            setting: ",".join({**present[setting], **pairs})
            for setting, pairs in wanted.items()
            if EVERY not in present[setting]
        }
    _alter_topics(connection, changes)


def clear_throttles(
    connection: Connection,
    layout: Layout,
    plan: Iterable[TopicPartition],
    *,
    with_rates: bool,
    where: BrokerAddress,
) -> bool:
    """Take back what was set for these partitions, and with `with_rates` the rates of all brokers. Return
    whether there was anything."""
    partitions: dict[str, dict[str, None]] = {}
    for name in plan:
        if name in layout.replicas:
            partitions.setdefault(name.topic, {})[str(name.partition)] = None
    changes: dict[str, dict[str, str | None]] = {}
    for topic, present in _present(connection, partitions).items():
        for setting, pairs in present.items():
            left = [pair for pair in pairs if pair.partition(":")[0] not in partitions[topic]]
            if len(left) < len(pairs):
                changes.setdefault(topic, {})[setting] = ",".join(left) or None
    _alter_topics(connection, changes)
    is_anything = bool(changes)
    if with_rates and is_anything:
        for node_id in layout.addresses:
            _at_broker(layout, node_id, where, dict.fromkeys(RATES))
    return is_anything


def _present(connection: Connection, topics: Iterable[str]) -> dict[str, dict[str, Pairs]]:
    """What is set now, by topic and setting."""
    names = [LEADER_REPLICAS, FOLLOWER_REPLICAS]
    resources = [
        DescribeConfigsResource(resource_type=_TOPIC, resource_name=topic, configuration_keys=names)
        for topic in topics
    ]
    if not resources:
        return {}
    answer = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=resources))
    present: dict[str, dict[str, Pairs]] = {}
    for result in answer.results:
        _check(result)
        values = {config.name: config.value or "" for config in result.configs}
        present[result.resource_name] = {
            name: dict.fromkeys(item for item in values.get(name, "").split(",") if item) for name in names
        }
    return present


def _alter_topics(connection: Connection, changes: Mapping[str, Mapping[str, str | None]]) -> None:
    resources = [_resource(_TOPIC, topic, settings) for topic, settings in changes.items() if settings]
    if resources:
        _alter(connection, resources)


def _at_broker(
    layout: Layout, node_id: NodeId, where: BrokerAddress, settings: Mapping[str, str | None]
) -> None:
    """Change settings of a broker, which only itself takes. One that is down has nothing to send or fetch."""
    address = layout.addresses.get(node_id)
    if address is None:
        return
    connection = connect(*address, where)
    try:
        _alter(connection, [_resource(_BROKER, str(node_id), settings)])
    finally:
        connection.close()


def _resource(kind: int, name: str, settings: Mapping[str, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=setting, config_operation=_DELETE if value is None else _SET, value=value)
            for setting, value in settings.items()
        ],
    )


def _alter(connection: Connection, resources: list[AlterConfigsResource]) -> None:
    request = IncrementalAlterConfigsRequest(resources=resources)
    for response in connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses:
        _check(response)


def _check(response: Any) -> None:
    if response.error_code:
        reason = response.error_message or ErrorCode(response.error_code).message
        raise RequestFailed(f"the throttle of {response.resource_name}: {reason}")
