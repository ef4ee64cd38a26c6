"""A broker that aborts late transactions soon, and producers that never outlive their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.compat.transactions.producers import Host, Producer, java_host, python_host
from tests.compat.transactions.streams_applications import start_application, streams
from tests.conftest import CheckDisks, broker_class
from tests.harness.process import BrokerProcess
from tests.harness.topics import unique_name
from tools.kafka_distribution import KafkaUnavailable, locate

__all__ = ["start_application", "streams"]

SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "log.retention.check.interval.ms": "3600000",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "300",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.initial.rebalance.delay.ms": "500",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
# Kafka looks for late transactions from time to time; Millrace has a timer for each.
KAFKA_ONLY: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
LONG_MS: Final = 60_000


@pytest.fixture(scope="session")
def settings(against: str) -> dict[str, str]:
    return SETTINGS | KAFKA_ONLY if against == "kafka" else SETTINGS


@pytest.fixture(scope="package")
def broker(
    against: str,
    settings: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    check_disks: CheckDisks,
) -> Iterator[BrokerProcess]:
    process = broker_class(against)(tmp_path_factory.mktemp("broker"), settings)
    process.start()
    yield process
    process.end()
    check_disks(process)


class Hosts:
    """The processes with producers: one for each language, and more for those that are to be killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mortal: list[Host] = []
        self._python = python_host(directory)
        try:
            self._java: Host | None = java_host(directory, locate())
        except KafkaUnavailable:
            self._java = None

    def of(self, kind: str, *, is_mortal: bool) -> Host:
        if kind == "java":
            if self._java is None:
                pytest.skip("no Java, or Kafka's jars cannot be fetched")
            return self._java
        if not is_mortal:
            return self._python
        self._mortal.append(python_host(self._directory))
        return self._mortal[-1]

    def end_mortals(self) -> None:
        for host in self._mortal:
            host.close()
        self._mortal.clear()

    def close(self) -> None:
        self.end_mortals()
        for host in (self._python, self._java):
            if host is not None:
                host.close()


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("transactional-clients"))
    yield hosts
    hosts.close()


class ProducerMaker:
    def __init__(self, hosts: Hosts, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._hosts = hosts
        self._made: list[Producer] = []

    def __call__(
        self, kind: str, ident: str | None = None, *, timeout_ms: int = LONG_MS, is_mortal: bool = False
    ) -> Producer:
        """A producer, initialised. A mortal one has a process of its own, so that it can be killed."""
        producer = self.unready(kind, ident, timeout_ms=timeout_ms, is_mortal=is_mortal)
        producer.init()
        return producer

    def unready(
        self, kind: str, ident: str | None = None, *, timeout_ms: int = LONG_MS, is_mortal: bool = False
    ) -> Producer:
        host = self._hosts.of(kind, is_mortal=is_mortal)
        producer = Producer(host, kind, self.bootstrap, ident or unique_name("txn"), timeout_ms)
        if not is_mortal:
            self._made.append(producer)
        return producer

    def end(self) -> None:
        for producer in self._made:
            producer.start("close")
        self._hosts.end_mortals()


@pytest.fixture
def make_producer(hosts: Hosts, broker: BrokerProcess) -> Iterator[ProducerMaker]:
    maker = ProducerMaker(hosts, broker.bootstrap)
    yield maker
    maker.end()
