"""A cluster of processes, and the questions that tests ask it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.etcd import EtcdProcess
from tests.harness.millrace import MillraceProcess
from tests.harness.network import Network
from tests.harness.process import eventually

DEADLINE_S = 90.0
SETTINGS: Mapping[str, str] = {
    "metadata.store": "etcd",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # Machines under load may be silent for a while, which is not what these tests are about.
    "broker.session.timeout.ms": "20000",
    "replica.lag.time.max.ms": "20000",
}


class PartitionView(NamedTuple):
    leader: int
    isr: tuple[int, ...]


class Cluster:
    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        brokers: int = 3,
        network: Network | None = None,
        client: Mapping[str, str] | None = None,
        process: type[MillraceProcess] = MillraceProcess,
    ) -> None:
        """Without a network of its own it is on 127.0.0.1, where no link can be cut. `client` is what clients
        need beside the address."""
        self.client = dict(client or {})
        self.etcd = EtcdProcess(directory / "etcd")
        self._network = network
        self.brokers = {
            node_id: process(
                directory / f"broker-{node_id}",
                {
                    **SETTINGS,
                    **(settings or {}),
                    "node.id": str(node_id),
                    "broker.rack": f"rack-{node_id}",
                    "etcd.endpoints": self.etcd.endpoint,
                },
            )
            for node_id in range(1, brokers + 1)
        }
        self._admin: Any = None
        if network is not None:
            network.place_etcd(self.etcd)
            for node_id, broker in self.brokers.items():
                network.place_broker(node_id, broker, self.etcd)

    @property
    def network(self) -> Network:
        assert self._network is not None, "this cluster has no links that could be cut"
        return self._network

    def start(self) -> None:
        self.etcd.start()
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_ready()
        eventually(self.is_whole, DEADLINE_S)

    def end(self) -> None:
        for broker in self.brokers.values():
            broker.end()
        self.etcd.end()
        if self._network is not None:
            self._network.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **self.client})
        return self._admin

    def is_whole(self) -> bool:
        """Whether every broker's own answer names all of them."""
        try:
            return all(
                len(self._metadata(broker.bootstrap).brokers) == len(self.brokers)
                for broker in self.brokers.values()
            )
        except confluent_kafka.KafkaException:
            return False

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        topic = NewTopic(name, partitions, 3, config=dict(configs or {}))
        self.admin.create_topics([topic])[name].result(60)
        eventually(lambda: self.is_in_sync(name), DEADLINE_S)

    def partitions(self, topic: str, seen_by: int | None = None) -> dict[int, PartitionView]:
        """As one broker has it, or the first that answers."""
        for node_id, broker in self.brokers.items():
            if broker.is_running() and seen_by in (None, node_id):
                try:
                    described = self._metadata(broker.bootstrap, topic).topics[topic].partitions
                except confluent_kafka.KafkaException:
                    continue
                return {
                    index: PartitionView(view.leader, tuple(sorted(view.isrs)))
                    for index, view in described.items()
                }
        return {}

    def is_in_sync(self, topic: str) -> bool:
        """Whether every partition is led, and all brokers are in sync, as all of them have it."""
        for broker in self.brokers.values():
            if not broker.is_running():
                return False
            try:
                described = self._metadata(broker.bootstrap, topic).topics[topic]
            except confluent_kafka.KafkaException:
                return False
            views = described.partitions.values()
            if not views or any(view.leader < 0 or len(view.isrs) < len(self.brokers) for view in views):
                return False
        return True

    def log_bytes(self, topic: str, partition: int) -> dict[int, bytes]:
        """What each broker has on its disk of a partition."""
        return {
            node_id: b"".join(
                path.read_bytes() for path in sorted((broker.data_dir / f"{topic}-{partition}").glob("*.log"))
            )
            for node_id, broker in self.brokers.items()
        }

    def have_same_log(self, topic: str, partition: int) -> bool:
        logs = self.log_bytes(topic, partition)
        return len(set(logs.values())) == 1

    def _metadata(self, bootstrap: str, topic: str | None = None) -> Any:
        client = AdminClient(
            {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 5_000, **self.client}
        )
        return client.list_topics(topic, timeout=5) if topic else client.list_topics(timeout=5)
