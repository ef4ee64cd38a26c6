"""Makes topics that a write finds missing, as its options say, where brokers allow that to any client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.client.broker_client import BrokerClient, TopicInfo
from millrace.client.errors import BrokerRefused, ClientError
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

BROKERS_DEFAULT: Final = -1
"""Partitions or replicas: as many as the brokers' settings say."""

_CREATE_TOPICS_VERSIONS: Final = (5, 7)
_DESCRIBE_CONFIGS_VERSIONS: Final = (1, 4)
_BROKER_RESOURCE: Final = 4
_AUTO_CREATION: Final = "auto.create.topics.enable"


class TopicMissing(ClientError):
    """A write's topic does not exist, and the brokers let it make none."""

    def __init__(self, topic: str, reason: str = "") -> None:
        super().__init__(
            f"topic {topic!r} does not exist{reason}: create it first, with: millrace topic create {topic}"
        )
        self.topic = topic


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopics:
    """How to make topics that are missing."""

    partitions: int = BROKERS_DEFAULT
    replicas: int = BROKERS_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


def find_or_create(client: BrokerClient, topic: str, new: NewTopics) -> TopicInfo:
    """The topic, made first if it is missing; raises TopicMissing where brokers make no topics by themselves.

    Several tasks may come here at once: one of them makes the topic, and all see the same.
    """
    found = client.metadata([topic]).get(topic)
    if found is not None:
        return found
    if not _is_creation_allowed(client, topic):
        raise TopicMissing(topic, f", and the brokers make none by themselves ({_AUTO_CREATION}=false)")
    create_topic(client, topic, new, may_exist=True)
    return client.metadata([topic])[topic]


def create_topic(client: BrokerClient, topic: str, new: NewTopics, *, may_exist: bool = False) -> None:
    """Make a topic and wait until all its partitions have leaders."""
    wanted = CreatableTopic(
        name=topic,
        num_partitions=new.partitions,
        replication_factor=new.replicas,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in new.configs.items()],
    )
    message = CreateTopicsRequest(topics=[wanted], timeout_ms=client.timeout_ms)

    def attempt() -> None:
        version = client.version(ApiKey.CREATE_TOPICS, *_CREATE_TOPICS_VERSIONS)
        (answer,) = client.request(ApiKey.CREATE_TOPICS, version, message).topics
        if may_exist and answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        if answer.error_code != ErrorCode.NONE:
            reason = f": {answer.error_message}" if answer.error_message else ""
            raise BrokerRefused(answer.error_code, f"topic {topic} cannot be created{reason}")

    if may_exist:
        client.retrying(attempt)
    else:
        # Another try could find the topic that the first one has made, and take it for somebody else's.
        attempt()
    client.retrying(lambda: _require_leaders(client, topic))


def _is_creation_allowed(client: BrokerClient, topic: str) -> bool:
    def attempt() -> bool:
        node_id = client.any_node()
        resource = DescribeConfigsResource(
            resource_type=_BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[_AUTO_CREATION]
        )
        version = client.version(ApiKey.DESCRIBE_CONFIGS, *_DESCRIBE_CONFIGS_VERSIONS, node_id)
        message = DescribeConfigsRequest(resources=[resource])
        (answer,) = client.request(ApiKey.DESCRIBE_CONFIGS, version, message, node_id).results
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise TopicMissing(topic, f", and this user may not ask for {_AUTO_CREATION}")
        if answer.error_code != ErrorCode.NONE:
            raise BrokerRefused(answer.error_code, f"settings of broker {node_id}")
        return any(each.name == _AUTO_CREATION and each.value == "true" for each in answer.configs)

    return client.retrying(attempt)


def _require_leaders(client: BrokerClient, topic: str) -> None:
    """Raise BrokerRefused, which may pass, while some partition of a new topic has no leader yet."""
    info = client.metadata([topic]).get(topic)
    if info is None or any(partition.leader < 0 for partition in info.partitions.values()):
        raise BrokerRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"new topic {topic}")
