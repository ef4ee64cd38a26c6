"""Three brokers of a system, and what they need beside them, as one server.

A cluster is measured and thrown away: as a whole it is not started again on its data, only one of its brokers
may be.
"""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.servers import HOST, SHARED_SETTINGS, STOP_TIMEOUT_S, KafkaServer, MillraceServer, Server
from millrace.cli.cluster.etcd import etcd_command
from tools.kafka_distribution import KafkaDistribution, free_port, kafka_quorum

BROKERS: Final = 3
ETCD_READY_S: Final = 60.0


class EtcdServer:
    """The store of a Millrace cluster, with the settings that etcd has by itself: it flushes every write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._command = etcd_command(directory / "data", client_port=self._port, peer_port=free_port())
        self._process: subprocess.Popen[bytes] | None = None
        self.log_file = directory / "server.log"

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start etcd, and wait until it answers or ends."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + ETCD_READY_S
        while self.is_running() and not self._is_healthy() and time.monotonic() < deadline:
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=2.0) as response:
                return b'"true"' in response.read()
        except OSError:
            return False


class ClusterServer:
    """Brokers that are started, ended and counted together, the store with them where there is one."""

    def __init__(self, brokers: Sequence[Server], etcd: EtcdServer | None = None) -> None:
        self.brokers = brokers
        """One by one, for workloads that end a broker and start it again."""
        self._etcd = etcd

    @property
    def ports(self) -> list[int]:
        return [port for broker in self.brokers for port in broker.ports]

    @property
    def pids(self) -> list[int]:
        store = [self._etcd.pid] if self._etcd else []
        return [*(pid for broker in self.brokers for pid in broker.pids), *store]

    @property
    def log_files(self) -> list[Path]:
        store = [self._etcd.log_file] if self._etcd else []
        return [*(log_file for broker in self.brokers for log_file in broker.log_files), *store]

    def prepare(self) -> None:
        for broker in self.brokers:
            broker.prepare()

    def start(self) -> None:
        if self._etcd is not None:
            self._etcd.start()
        for broker in self.brokers:
            broker.start()

    def is_running(self) -> bool:
        return all(broker.is_running() for broker in self.brokers) and (
            self._etcd is None or self._etcd.is_running()
        )

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop by force: nobody needs the data, and the last of Kafka's nodes would wait for a quorum."""
        self.kill()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()
        if self._etcd is not None:
            self._etcd.kill()


def kafka_cluster(distribution: KafkaDistribution, directory: Path) -> ClusterServer:
    """Nodes that are brokers and controllers at once, which is the least that Kafka can be run with."""
    return ClusterServer(
        [KafkaServer(node) for node in kafka_quorum(distribution, directory, BROKERS, SHARED_SETTINGS)]
    )


def millrace_cluster(command: list[str], settings: Sequence[str], directory: Path) -> ClusterServer:
    etcd = EtcdServer(directory / "etcd")
    brokers = [
        MillraceServer(
            command,
            (
                f"node.id={node_id}",
                "metadata.store=etcd",
                f"etcd.endpoints={etcd.endpoint}",
                # As in the properties that Kafka ships: internal topics are no part of what is measured.
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                *settings,
            ),
            directory / f"node-{node_id}",
        )
        for node_id in range(1, BROKERS + 1)
    ]
    return ClusterServer(brokers, etcd)
