"""A broker with short group time-outs, and the members of a test, which never outlive it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.groups.group import GroupMaker
from tests.compat.groups.members import JavaMembers
from tests.conftest import CheckDisks, broker_class
from tests.harness.process import BrokerProcess
from tools.kafka_distribution import KafkaUnavailable

SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "3600000",
    "offsets.topic.num.partitions": "8",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


@pytest.fixture(scope="session")
def broker(
    against: str, tmp_path_factory: pytest.TempPathFactory, check_disks: CheckDisks
) -> Iterator[BrokerProcess]:
    process = broker_class(against)(tmp_path_factory.mktemp("broker"), SETTINGS)
    process.start()
    yield process
    process.end()
    check_disks(process)


@pytest.fixture(scope="session")
def java_members_if_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaMembers | None]:
    try:
        host = JavaMembers(tmp_path_factory.mktemp("java-members"))
    except KafkaUnavailable:
        yield None
        return
    yield host
    host.close()


@pytest.fixture(scope="session")
def java_members(java_members_if_there: JavaMembers | None) -> JavaMembers:
    if java_members_if_there is None:
        pytest.skip("no Java, or Kafka's jars cannot be fetched")
    return java_members_if_there


@pytest.fixture
def make_group(broker: BrokerProcess, java_members_if_there: JavaMembers | None) -> Iterator[GroupMaker]:
    maker = GroupMaker(broker.bootstrap, java_members_if_there)
    yield maker
    maker.end()
