"""Somebody of a tenant sees what is the tenant's, and nothing else: it stands for permissions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.security.tenants import Tenant, TenantLimits
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.broker.handlers.broker import RESTRICTED, Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", RESTRICTED)
    broker.start()
    tenant = Tenant(
        name="acme",
        prefix="acme.",
        administrators=("User:boss",),
        members=("User:worker",),
        limits=TenantLimits(partitions=3),
    )
    broker.run(broker.metadata.security.put_tenant(tenant, is_new=True))
    for name in ("acme.orders", "other.orders"):
        broker.create_topic(name)
    yield broker
    broker.stop()


@pytest.mark.parametrize("who", ["boss", "worker"])
def test_only_its_own_topics_are_listed(broker: Broker, who: str) -> None:
    everything = broker.ask(MetadataRequest(topics=None), 12, as_user=who)
    assert [topic.name for topic in everything.topics] == ["acme.orders"]
    named = broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="other.orders")]), 12, as_user=who)
    assert [topic.error_code for topic in named.topics] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_its_administrator_creates_topics_of_its_names_and_no_more_than_it_may(broker: Broker) -> None:
    def create(name: str, partitions: int) -> int:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        answer = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000), 7, as_user="boss")
        return int(answer.topics[0].error_code)

    assert create("other.mine", 1) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert create("acme.large", 3) == ErrorCode.POLICY_VIOLATION
    assert create("acme.small", 2) == 0
