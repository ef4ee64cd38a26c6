"""The two systems under test behind one face: start, wait for the first answer, stop, kill, measure."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import frames
from benchmarks.connection import Connection
from benchmarks.processes import cpu_seconds, process_tree, resident_mb
from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution, KafkaNode, free_port

KEPT_LOGS: Final = PROJECT_ROOT / ".cache" / "benchmarks" / "logs"
HOST: Final = "127.0.0.1"
READY_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 120.0
ADMIN_TIMEOUT_S: Final = 60.0
PROBE_INTERVAL_S: Final = 0.005
DELETE_DELAY_MS: Final = 500
# Warnings and worse; librdkafka writes to standard error, across the progress bar.
QUIET: Final = {"log_level": 4}


class System(StrEnum):
    KAFKA = "kafka"
    MILLRACE = "millrace"


class BrokerFailed(Exception):
    """A broker did not start, answer or do as asked; the message says which and why."""


class Server(Protocol):
    """A broker process that can be started and ended more than once on the same data."""

    port: int

    @property
    def pid(self) -> int: ...
    @property
    def log_file(self) -> Path: ...
    def prepare(self) -> None: ...
    def start(self) -> None: ...
    def is_running(self) -> bool: ...
    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None: ...
    def kill(self) -> None: ...


class KafkaServer:
    def __init__(self, distribution: KafkaDistribution, directory: Path) -> None:
        self._node = KafkaNode(distribution, directory)
        self.port = self._node.port

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def log_file(self) -> Path:
        return self._node.log_file

    def prepare(self) -> None:
        self._node.format()

    def start(self) -> None:
        self._node.start()

    def is_running(self) -> bool:
        return self._node.is_running()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        self._node.stop(timeout_s)

    def kill(self) -> None:
        self._node.kill()


class MillraceServer:
    def __init__(self, command: list[str], settings: Sequence[str], directory: Path) -> None:
        self.port = free_port()
        self._command = [*command, "serve", "--data-dir", str(directory / "data")]
        self._command += ["--listen", f"{HOST}:{self.port}"]
        if not any(setting.startswith("metrics.listener=") for setting in settings):
            # The HTTP server stays on, at a port that is not in anybody's way.
            settings = (f"metrics.listener={HOST}:0", *settings)
        self._command += [part for setting in settings for part in ("--set", setting)]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log_file(self) -> Path:
        return self._directory / "server.log"

    def prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        assert self._process is None, "already started"
        with self.log_file.open("ab") as log:
            # A session of its own: Ctrl-C reaches the benchmark only, which then stops the broker.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


class Broker:
    """One system in one directory, with what the workloads ask of it."""

    def __init__(self, system: System, server: Server, directory: Path) -> None:
        self.system = system
        self.server = server
        self.directory = directory
        self.port = server.port

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> float:
        """Start, and return the seconds from the process's start to its first answered requests."""
        self.server.prepare()
        started = time.perf_counter()
        self.server.start()
        while time.perf_counter() - started < READY_TIMEOUT_S:
            if not self.server.is_running():
                break
            if self._answers():
                return time.perf_counter() - started
            time.sleep(PROBE_INTERVAL_S)
        self.server.kill()
        raise BrokerFailed(f"{self.system} did not start; the end of its log:\n{self._log_tail()}")

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def remove_files(self) -> None:
        """Remove the data; the log of the last broker of each system stays, for after a failure."""
        if self.server.log_file.exists():
            KEPT_LOGS.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.server.log_file, KEPT_LOGS / f"{self.system}.log")
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu_s(self) -> float:
        return cpu_seconds(self.server.pid)

    def resident_mb(self) -> float:
        return resident_mb(self.server.pid)

    def process_count(self) -> int:
        return len(process_tree(self.server.pid))

    def create_topic(self, name: str, partitions: int = 1) -> None:
        # Both systems remove files soon after a deletion, so that it does not fall into a later round.
        topic = NewTopic(name, partitions, 1, config={"file.delete.delay.ms": str(DELETE_DELAY_MS)})
        admin = self._admin()
        try:
            admin.create_topics([topic], operation_timeout=ADMIN_TIMEOUT_S)[name].result(ADMIN_TIMEOUT_S)
            self._wait_for_leaders(admin, name, partitions)
            self._wait_until_served(name, partitions)
        except KafkaException as error:
            raise BrokerFailed(f"{self.system} cannot create topic {name}: {error}") from error

    def delete_topic(self, name: str) -> None:
        admin = self._admin()
        try:
            admin.delete_topics([name], operation_timeout=ADMIN_TIMEOUT_S)[name].result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            raise BrokerFailed(f"{self.system} cannot delete topic {name}: {error}") from error

    def record_count(self, topic: str, partition: int = 0) -> int:
        """How many records the partition holds, as a client is told."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench", **QUIET})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            return int(high) - int(low)
        except KafkaException as error:
            raise BrokerFailed(f"{self.system} cannot tell the end of {topic}: {error}") from error
        finally:
            consumer.close()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def _wait_for_leaders(self, admin: AdminClient, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while time.monotonic() < deadline:
            found = admin.list_topics(topic, timeout=30).topics[topic].partitions
            if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
                return
            time.sleep(0.05)
        raise BrokerFailed(f"{self.system}: {topic} has no leaders after {ADMIN_TIMEOUT_S:.0f} s")

    def _wait_until_served(self, topic: str, partitions: int) -> None:
        """Metadata names a leader before that leader serves the partition; a fetch shows the truth."""
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        with Connection(HOST, self.port) as connection:
            for partition in range(partitions):
                request = frames.fetch_request(topic, partition, 0, 1024)
                while error_code := frames.fetch_answer(connection.request(request)).error_code:
                    if time.monotonic() > deadline:
                        raise BrokerFailed(f"{self.system}: {topic}-{partition} fails, error {error_code}")
                    time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with Connection(HOST, self.port, timeout_s=5) as connection:
                connection.request(frames.api_versions_request())
                return frames.metadata_broker_count(connection.request(frames.metadata_request())) > 0
        except OSError:
            return False

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.server.log_file.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            return "(no log)"


class BrokerFactory:
    """Makes brokers in fresh directories and knows all of them, so that none outlives the run."""

    def __init__(
        self,
        work_dir: Path,
        distribution: KafkaDistribution | None,
        *,
        millrace_command: str | None = None,
        millrace_settings: Sequence[str] = (),
    ) -> None:
        self._work_dir = work_dir
        self.distribution = distribution
        self._command = shlex.split(millrace_command) if millrace_command else [_default_millrace()]
        self._settings = millrace_settings
        self._brokers: list[Broker] = []

    @property
    def systems(self) -> tuple[System, ...]:
        return (System.KAFKA, System.MILLRACE) if self.distribution else (System.MILLRACE,)

    def create(self, system: System) -> Broker:
        directory = self._work_dir / f"{system}-{len(self._brokers)}"
        server: Server
        match system:
            case System.KAFKA:
                assert self.distribution is not None, "Kafka is not available"
                server = KafkaServer(self.distribution, directory)
            case System.MILLRACE:
                server = MillraceServer(self._command, self._settings, directory)
        broker = Broker(system, server, directory)
        self._brokers.append(broker)
        return broker

    def close(self) -> None:
        for broker in self._brokers:
            broker.kill()
            broker.remove_files()


def _default_millrace() -> str:
    return str(Path(sys.executable).parent / "millrace")
