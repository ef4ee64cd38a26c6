"""Apache Kafka for benchmarks and compatibility tests: its jars from Maven Central, and KRaft nodes.

Nothing here runs in production. Jars are kept in `.cache/`, which git ignores; every started process is
ended by its own pid.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

KAFKA_VERSION: Final = "4.3.1"
PROJECT_ROOT: Final = Path(__file__).resolve().parent.parent
DEFAULT_CACHE: Final = PROJECT_ROOT / ".cache" / f"kafka-{KAFKA_VERSION}"
STREAMS_CACHE: Final = PROJECT_ROOT / ".cache" / f"kafka-streams-{KAFKA_VERSION}"

FETCH_TIMEOUT_S: Final = 600
FORMAT_TIMEOUT_S: Final = 60
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 60

_CLUSTER_ID: Final = "bWlsbHJhY2UtYmVuY2gtMQ"
_COMPLETE_MARK: Final = ".complete"

# slf4j-simple gives Kafka a log on standard error, without which a failed start says nothing.
_LOGGING: Final = ("org.slf4j", "slf4j-simple", "1.7.36")
_BROKER_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    _LOGGING,
)
_STREAMS_ARTIFACTS: Final = (("org.apache.kafka", "kafka-streams", KAFKA_VERSION), _LOGGING)
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millrace</groupId>
  <artifactId>kafka-distribution</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
_POM_DEPENDENCY: Final = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
    </dependency>
"""
Artifact = tuple[str, str, str]

# What Kafka's own start script (kafka-run-class) passes to the JVM.
_JVM_PERFORMANCE_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)

# The values of config/server.properties as Kafka ships it; listeners and directories are added per node.
_SERVER_PROPERTIES: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be fetched or started here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """The jars of one Kafka release and the Java that runs them."""

    jars: Path
    java: str

    @property
    def classpath(self) -> str:
        return f"{self.jars}/*"

    def command(
        self, main_class: str, *arguments: str, heap: str = "256M", jvm_options: Sequence[str] = ()
    ) -> list[str]:
        """The command line that runs one of Kafka's classes, with the options of Kafka's own scripts."""
        return [
            self.java,
            f"-Xmx{heap}",
            *_JVM_PERFORMANCE_OPTIONS,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *jvm_options,
            "-cp",
            self.classpath,
            main_class,
            *arguments,
        ]


def locate(cache: Path = DEFAULT_CACHE) -> KafkaDistribution:
    """The distribution in `cache`, fetched by Maven if it is not there yet."""
    return _locate(cache, _BROKER_ARTIFACTS)


def locate_streams(cache: Path = STREAMS_CACHE) -> KafkaDistribution:
    """The same for Kafka Streams with its client and its store; apart, since few tests need its 90 MB."""
    return _locate(cache, _STREAMS_ARTIFACTS)


def _locate(cache: Path, artifacts: Sequence[Artifact]) -> KafkaDistribution:
    java = shutil.which("java")
    if java is None:
        raise KafkaUnavailable("no `java` command on the path")
    jars = cache / "libs"
    if not (cache / _COMPLETE_MARK).exists():
        _fetch_once(cache, jars, artifacts)
    return KafkaDistribution(jars, java)


def java_version(java: str = "java") -> str | None:
    """The first line of `java -version`, or None without Java."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = (answer.stderr or answer.stdout).splitlines()
    return lines[0].strip() if lines else None


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KafkaNode:
    """One KRaft node (broker and controller) on 127.0.0.1, kept in `directory` over restarts. It is alone
    unless `kafka_quorum` made it."""

    def __init__(
        self,
        distribution: KafkaDistribution,
        directory: Path,
        *,
        port: int | None = None,
        heap: str = "1G",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.distribution = distribution
        self.directory = directory
        self.port = port or free_port()
        self.heap = heap
        self.controller_port = free_port()
        self.settings = dict(settings or {})
        self._voters: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_listening()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def format(self) -> None:
        """Write the configuration and prepare the data directory; a prepared one is left as it is."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = {**_SERVER_PROPERTIES, **self._listener_properties(), **self.settings}
        self._properties_file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        if (self.data_dir / "meta.properties").exists():
            return
        # A node whose configuration names voters is not alone.
        alone = () if self._voters else ("--standalone",)
        answer = subprocess.run(
            self.distribution.command(
                "kafka.tools.StorageTool",
                *("format", "--cluster-id", _CLUSTER_ID, *alone),
                *("--config", str(self._properties_file)),
            ),
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        if answer.returncode != 0:
            raise KafkaUnavailable(f"formatting failed: {answer.stdout}{answer.stderr}".strip())

    def join_quorum(self, node_id: int, voters: str) -> None:
        """Make this one of several nodes, before it is formatted; `voters` names all of them."""
        self.settings["node.id"] = str(node_id)
        self._voters = voters

    def start(self) -> None:
        """Start the process and return at once."""
        assert self._process is None, "already started"
        self.format()
        command = self.distribution.command(
            "kafka.Kafka", str(self._properties_file), heap=self.heap, jvm_options=(f"-Xms{self.heap}",)
        )
        with self.log_file.open("ab") as log:
            # The node gets a session of its own: Ctrl-C reaches only the caller, who then stops it in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_until_listening(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return as soon as the port accepts connections; raise if the process ends before."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.is_running():
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        self.kill()
        raise KafkaUnavailable(f"Kafka did not start; the end of its log:\n{self._log_tail()}")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop in order (SIGTERM), or by force after `timeout_s`."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the process without warning (SIGKILL), as a crash would."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    @property
    def _properties_file(self) -> Path:
        return self.directory / "server.properties"

    def _listener_properties(self) -> dict[str, str]:
        quorum = (
            {"controller.quorum.voters": self._voters}
            if self._voters
            else {"controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}"}
        )
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            **quorum,
            "log.dirs": str(self.data_dir),
        }

    def _log_tail(self) -> str:
        if not self.log_file.exists():
            return "(no log)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])


def kafka_quorum(
    distribution: KafkaDistribution, directory: Path, count: int, settings: Mapping[str, str] | None = None
) -> list[KafkaNode]:
    """Nodes that are brokers and controllers of one cluster, each in a directory of its own."""
    nodes = [
        KafkaNode(distribution, directory / f"node-{node_id}", settings=settings)
        for node_id in range(1, count + 1)
    ]
    voters = ",".join(f"{node_id}@127.0.0.1:{node.controller_port}" for node_id, node in enumerate(nodes, 1))
    for node_id, node in enumerate(nodes, 1):
        node.join_quorum(node_id, voters)
    return nodes


def _fetch_once(cache: Path, jars: Path, artifacts: Sequence[Artifact]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no `mvn` command on the path to fetch Kafka's jars with")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        # Tests and benchmarks may both be the first to ask.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / _COMPLETE_MARK).exists():
            _fetch(maven, cache, jars, artifacts)
            (cache / _COMPLETE_MARK).touch()


def _fetch(maven: str, cache: Path, jars: Path, artifacts: Sequence[Artifact]) -> None:
    pom = cache / "pom.xml"
    dependencies = "".join(_POM_DEPENDENCY.format(*artifact) for artifact in artifacts)
    pom.write_text(_POM.format(dependencies=dependencies))
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={jars}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailable(f"Maven took longer than {FETCH_TIMEOUT_S} s") from error
    if answer.returncode != 0:
        raise KafkaUnavailable(f"Maven failed:\n{(answer.stdout + answer.stderr).strip()[-2000:]}")
