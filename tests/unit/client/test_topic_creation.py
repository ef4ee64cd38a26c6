"""Topics are made where brokers allow it, once, and are used only when they have leaders."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client.broker_client import BrokerClient
from millrace.client.errors import BrokerRefused
from millrace.client.topic_creation import NewTopics, TopicMissing, create_topic, find_or_create
from millrace.core.override import override
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from millrace.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from millrace.wire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from tests.unit.client.scripted_brokers import BOOTSTRAP, TOPIC_ID, ScriptedBrokers, in_turn

NEW = NewTopics(partitions=2, replicas=1, configs={"retention.ms": "1"})


class Creators(ScriptedBrokers):
    """Brokers that make topics; a new one has leaders after a few questions."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        self.leaderless_answers = 2
        self.answers |= {ApiKey.CREATE_TOPICS: self.create, ApiKey.DESCRIBE_CONFIGS: self.may_create("true")}

    def may_create(self, value: str, error_code: int = 0) -> Any:
        settings = [DescribeConfigsResourceResult(name="auto.create.topics.enable", value=value)]
        result = DescribeConfigsResult(error_code=error_code, resource_type=4, configs=settings)
        return in_turn(DescribeConfigsResponse(results=[result]))

    def create(self, request: Any, _node: int) -> Any:
        (wanted,) = request.topics
        code = ErrorCode.TOPIC_ALREADY_EXISTS if wanted.name in self.made else ErrorCode.NONE
        self.made.append(wanted.name)
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=wanted.name, error_code=code)])

    @override
    def metadata(self, request: Any, _node: int) -> Any:
        response = super().metadata(request, _node)
        for at, topic in enumerate(response.topics):
            if topic.name in self.made:
                leader = -1 if self.leaderless_answers > 0 else 1
                self.leaderless_answers -= 1
                part = MetadataResponsePartition(error_code=0, partition_index=0, leader_id=leader)
                response.topics[at] = MetadataResponseTopic(
                    error_code=0, name=topic.name, topic_id=TOPIC_ID, partitions=[part]
                )
        return response


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Creators:
    found = Creators()
    found.install(monkeypatch)
    return found


@pytest.fixture
def client(brokers: Creators) -> BrokerClient:
    return BrokerClient(BOOTSTRAP, timeout_ms=1000)


def test_a_topic_that_is_there_is_not_made(brokers: Creators, client: BrokerClient) -> None:
    assert len(find_or_create(client, "orders", NEW).partitions) == 2
    assert brokers.asked == []


def test_a_missing_topic_is_made_as_wished_and_waited_for(brokers: Creators, client: BrokerClient) -> None:
    assert find_or_create(client, "new", NEW).partitions[0].leader == 1
    ((wanted,),) = [request.topics for request in brokers.requests(ApiKey.CREATE_TOPICS)]
    assert (wanted.name, wanted.num_partitions, wanted.replication_factor) == ("new", 2, 1)
    assert [(each.name, each.value) for each in wanted.configs] == [("retention.ms", "1")]
    assert len(brokers.slept) == 2, "until its partition has a leader"


@pytest.mark.parametrize("value, code, words", [
    ("false", 0, r"the brokers make none by themselves \(auto\.create\.topics\.enable=false\)"),
    ("true", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "this user may not ask for auto"),
])  # fmt: skip
def test_where_brokers_make_no_topics_the_user_is_told(
    value: str, code: int, words: str, brokers: Creators, client: BrokerClient
) -> None:
    brokers.answers[ApiKey.DESCRIBE_CONFIGS] = brokers.may_create(value, code)
    with pytest.raises(TopicMissing, match=words):
        find_or_create(client, "new", NEW)
    assert brokers.made == []


def test_somebody_elses_topic_is_told_from_ones_own(brokers: Creators, client: BrokerClient) -> None:
    brokers.made.append("new")
    create_topic(client, "new", NEW, may_exist=True)
    with pytest.raises(BrokerRefused, match=r"topic new cannot be created: .*TOPIC_ALREADY_EXISTS"):
        create_topic(client, "new", NEW)
    assert len(brokers.requests(ApiKey.CREATE_TOPICS)) == 2, "no try after the one that was refused"
