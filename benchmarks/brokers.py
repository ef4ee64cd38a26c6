"""The two systems under test behind one face: start, wait for the first answer, stop, kill, measure."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clusters, frames
from benchmarks.connection import Connection
from benchmarks.guards import Guard
from benchmarks.processes import cpu_seconds, process_tree, resident_mb
from benchmarks.secured import Secured, secured_in
from benchmarks.servers import HOST, SHARED_SETTINGS, KafkaServer, MillraceServer, Server
from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution, KafkaNode, free_port

KEPT_LOGS: Final = PROJECT_ROOT / ".cache" / "benchmarks" / "logs"
READY_TIMEOUT_S: Final = 180.0
ADMIN_TIMEOUT_S: Final = 60.0
# Kafka begins to delete half a minute after its start.
DELETION_TIMEOUT_S: Final = 45.0
DELETION_POLL_S: Final = 0.1
PROBE_INTERVAL_S: Final = 0.005
DELETE_DELAY_MS: Final = 500
# Only warnings and worse: librdkafka writes to standard error, across the progress bar.
QUIET: Final = {"log_level": 4}


class System(StrEnum):
    """The two systems that are measured."""

    KAFKA = "kafka"
    MILLRACE = "millrace"
    BEFORE = "before"
    """Millrace at another commit (benchmarks/compare.py)."""


class BrokerFailed(Exception):
    """A broker did not start, answer or do as asked; the message says which and why."""


class Broker:
    """One system in one directory, with what the workloads ask of it. Its topics have a replica on each of
    its brokers."""

    def __init__(
        self, system: System, server: Server, directory: Path, secured: Secured | None = None
    ) -> None:
        self.system = system
        self.secured: Final = secured
        """Its listener with TLS and logins, if it has one beside the plain one."""
        self.server = server
        self.directory = directory
        self.port = server.ports[0]
        self.replicas = len(server.ports)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.server.ports)

    def start(self) -> float:
        """Start, and return the seconds from the process's start to its first answered requests."""
        self.server.prepare()
        started = time.perf_counter()
        self.server.start()
        while time.perf_counter() - started < READY_TIMEOUT_S:
            if not self.server.is_running():
                break
            if all(self._answers(port) for port in self.server.ports):
                took_s = time.perf_counter() - started
                self._make_user()
                return took_s
            time.sleep(PROBE_INTERVAL_S)
        self.server.kill()
        raise BrokerFailed(f"{self.system} did not start; the end of its log:\n{self._log_tail()}")

    def _make_user(self) -> None:
        if self.secured is not None:
            try:
                self.secured.create_user(self._admin())
            except KafkaException as error:
                raise BrokerFailed(f"{self.system} cannot make a user: {error}") from error

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def remove_files(self) -> None:
        """Remove the data; the logs of each system's last brokers stay, for after a failure."""
        for log_file in self.server.log_files:
            if log_file.exists():
                KEPT_LOGS.mkdir(parents=True, exist_ok=True)
                node = f"-{log_file.parent.name}" if self.replicas > 1 else ""
                shutil.copy(log_file, KEPT_LOGS / f"{self.system}{node}.log")
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_s(self) -> float:
        return sum(cpu_seconds(pid) for pid in self.server.pids)

    def resident_mb(self) -> float:
        return sum(resident_mb(pid) for pid in self.server.pids)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let its processes stand still, for a few seconds at most: longer, and it loses its sessions."""
        stopped = [each for pid in self.server.pids for each in process_tree(pid)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def process_count(self) -> int:
        return sum(len(process_tree(pid)) for pid in self.server.pids)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        # Both systems remove files soon after a deletion, so that it does not fall into a later round.
        config = {"file.delete.delay.ms": str(DELETE_DELAY_MS)}
        if self.replicas > 1:
            config["min.insync.replicas"] = str(self.replicas // 2 + 1)
        topic = NewTopic(name, partitions, self.replicas, config=config)
        admin = self._admin()
        try:
            admin.create_topics([topic], operation_timeout=ADMIN_TIMEOUT_S)[name].result(ADMIN_TIMEOUT_S)
            self._wait_until_served(name, self._wait_for_leaders(admin, name, partitions))
        except KafkaException as error:
            raise BrokerFailed(f"{self.system} cannot create topic {name}: {error}") from error

    def wait_in_sync(self, topic: str) -> int:
        """Wait until all replicas of the topic's only partition are in sync; return its leader's port."""
        (port,) = self._wait_for_leaders(self._admin(), topic, 1)
        return port

    def delete_topic(self, name: str) -> None:
        admin = self._admin()
        try:
            admin.delete_topics([name], operation_timeout=ADMIN_TIMEOUT_S)[name].result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            raise BrokerFailed(f"{self.system} cannot delete topic {name}: {error}") from error

    def wait_for_deletions(self) -> None:
        """Return when the files of deleted topics are gone, and what they took of the page cache."""
        deadline = time.monotonic() + DELETION_TIMEOUT_S
        while time.monotonic() < deadline and self._has_deleted_files():
            time.sleep(DELETION_POLL_S)

    def _has_deleted_files(self) -> bool:
        # We do not search by a pattern: directories vanish while one looks at them.
        return any(name.endswith("-delete") for _, names, _ in os.walk(self.directory) for name in names)

    def record_count(self, topic: str, partition: int = 0) -> int:
        """How many records the partition holds, as the broker tells a client."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench", **QUIET})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            return int(high) - int(low)
        except KafkaException as error:
            raise BrokerFailed(f"{self.system} cannot tell the end of {topic}: {error}") from error
        finally:
            consumer.close()

    def require_records(self, topic: str, expected: int) -> None:
        """A rate counts only if every acknowledged record is there."""
        found = self.record_count(topic)
        if found != expected:
            raise BrokerFailed(f"{self.system}: {topic} holds {found} records instead of {expected}")

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def _wait_for_leaders(self, admin: AdminClient, topic: str, partitions: int) -> dict[int, list[int]]:
        """Wait until every partition is led and all of its replicas are in sync; return the partitions by the
        port of their leader."""
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while time.monotonic() < deadline:
            metadata = admin.list_topics(topic, timeout=30)
            found = metadata.topics[topic].partitions
            if len(found) == partitions and all(
                each.leader in metadata.brokers and len(each.isrs) == self.replicas for each in found.values()
            ):
                led: dict[int, list[int]] = {}
                for number, each in sorted(found.items()):
                    led.setdefault(metadata.brokers[each.leader].port, []).append(number)
                return led
            time.sleep(0.05)
        raise BrokerFailed(f"{self.system}: {topic} has no leaders after {ADMIN_TIMEOUT_S:.0f} s")

    def _wait_until_served(self, topic: str, led: Mapping[int, Sequence[int]]) -> None:
        """Wait until fetches succeed: metadata names a leader before that leader serves the partition."""
        for port, partitions in led.items():
            self._wait_until_port_serves(port, topic, partitions)

    def _wait_until_port_serves(self, port: int, topic: str, partitions: Sequence[int]) -> None:
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        with Connection(HOST, port) as connection:
            for partition in partitions:
                request = frames.fetch_request(topic, partition, 0, 1024)
                while error_code := frames.fetch_answer(connection.request(request)).error_code:
                    if time.monotonic() > deadline:
                        raise BrokerFailed(f"{self.system}: {topic}-{partition} fails, error {error_code}")
                    time.sleep(0.02)

    def _answers(self, port: int) -> bool:
        """Whether the broker answers and knows of all others."""
        try:
            with Connection(HOST, port, timeout_s=5) as connection:
                connection.request(frames.api_versions_request())
                known = frames.metadata_broker_count(connection.request(frames.metadata_request()))
                return known >= self.replicas
        except OSError:
            return False

    def _log_tail(self) -> str:
        return "\n".join(_tail(log_file) for log_file in self.server.log_files)


class BrokerFactory:
    """Makes brokers in fresh directories and knows all of them, so that none outlives the run."""

    def __init__(
        self,
        work_dir: Path,
        distribution: KafkaDistribution | None,
        *,
        millrace_command: str | None = None,
        before_command: str | None = None,
        millrace_settings: Sequence[str] = (),
        guard: str | None = None,
    ) -> None:
        """With a guard (benchmarks/guards.py) Millrace checks what that of before does not."""
        self._work_dir = work_dir
        self._guard_name = guard
        self.distribution = distribution
        self._commands = {
            System.MILLRACE: shlex.split(millrace_command) if millrace_command else [default_millrace()],
            System.BEFORE: shlex.split(before_command or ""),
        }
        self._settings = (*(f"{name}={value}" for name, value in SHARED_SETTINGS.items()), *millrace_settings)
        self._brokers: list[Broker] = []

    @property
    def systems(self) -> tuple[System, ...]:
        """What is measured in turns. With a Millrace of before, Kafka lends its Java client only."""
        if self._commands[System.BEFORE]:
            return System.BEFORE, System.MILLRACE
        return (System.KAFKA, System.MILLRACE) if self.distribution else (System.MILLRACE,)

    def create(self, system: System) -> Broker:
        if self._guard_name is not None and system is System.MILLRACE:
            return self._create_guarded(Guard(self._guard_name, tuple(self._commands[system])))
        directory = self._new_directory(system)
        server: Server
        match system:
            case System.KAFKA:
                assert self.distribution is not None, "Kafka is not available"
                server = KafkaServer(KafkaNode(self.distribution, directory, settings=SHARED_SETTINGS))
            case System.MILLRACE | System.BEFORE:
                server = MillraceServer(self._commands[system], self._settings, directory)
        return self._known(Broker(system, server, directory))

    def _create_guarded(self, guard: Guard) -> Broker:
        """A broker with its permissions or quotas set; it is started once for that."""
        system = System.MILLRACE
        directory, command = self._new_directory(system), self._commands[system]
        first = MillraceServer(command, (*self._settings, *guard.first_settings), directory)
        broker = self._known(Broker(system, first, directory))
        broker.start()
        try:
            guard.apply(broker.bootstrap)
        except (KafkaException, subprocess.SubprocessError) as error:
            raise BrokerFailed(f"{system} cannot be guarded by {guard.name}: {error}") from error
        broker.stop()
        server = MillraceServer(command, (*self._settings, *guard.settings), directory)
        return self._known(Broker(system, server, directory))

    def create_secured(self, system: System) -> Broker:
        """One broker with a second listener, for TLS and logins."""
        directory = self._new_directory(system)
        secured = secured_in(directory)
        secured.write_certificates()
        server: Server
        match system:
            case System.KAFKA:
                assert self.distribution is not None, "Kafka is not available"
                node = KafkaNode(self.distribution, directory, settings=SHARED_SETTINGS)
                controller = {"CONTROLLER": f"{HOST}:{node.controller_port}"}
                node.settings.update(secured.broker_settings(node.port, controller))
                server = KafkaServer(node)
            case System.MILLRACE | System.BEFORE:
                port = free_port()
                own = [f"{name}={value}" for name, value in secured.broker_settings(port).items()]
                server = MillraceServer(self._commands[system], (*self._settings, *own), directory, port)
        return self._known(Broker(system, server, directory, secured))

    def create_cluster(self, system: System) -> Broker:
        """Three brokers that replicate everything to each other, behind the face of one."""
        directory = self._new_directory(system)
        server: Server
        match system:
            case System.KAFKA:
                assert self.distribution is not None, "Kafka is not available"
                server = clusters.kafka_cluster(self.distribution, directory)
            case System.MILLRACE | System.BEFORE:
                server = clusters.millrace_cluster(self._commands[system], self._settings, directory)
        return self._known(Broker(system, server, directory))

    def close(self) -> None:
        for broker in self._brokers:
            broker.kill()
            broker.remove_files()

    def _new_directory(self, system: System) -> Path:
        return self._work_dir / f"{system}-{len(self._brokers)}"

    def _known(self, broker: Broker) -> Broker:
        self._brokers.append(broker)
        return broker


def _tail(log_file: Path) -> str:
    try:
        return "\n".join(log_file.read_text(errors="replace").splitlines()[-15:])
    except OSError:
        return "(no log)"


def default_millrace() -> str:
    return str(Path(sys.executable).parent / "millrace")
