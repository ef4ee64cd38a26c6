"""A cluster on this machine for development: what was started, on which ports, and what its brokers say."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from millrace.cli.broker_requests import Connection
from millrace.cli.cluster import local_processes
from millrace.cli.cluster.etcd import etcd_command
from millrace.cli.cluster.local_processes import LocalProcess
from millrace.client.errors import ConnectionFailed
from millrace.client.security import PLAINTEXT, SecurityOptions, read_security
from millrace.core.errors import MillraceError
from millrace.core.properties import parse_properties
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages.metadata import MetadataRequest

HOST: Final = "127.0.0.1"
METRICS_OFFSET: Final = 100
ETCD_OFFSET: Final = 200
START_DEADLINE_S: Final = 60.0
STOP_DEADLINE_S: Final = 60.0
METADATA_VERSION: Final = 12
SECURITY_FOLDER: Final = "security"
CERTIFICATE_DAYS: Final = 365
_SERVE: Final = "from millrace.cli.main import main; main()"


class ClusterError(MillraceError):
    """The local cluster cannot do what was asked; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker process."""

    node_id: int
    port: int
    metrics_port: int
    rack: str
    process: LocalProcess | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running()


@dataclass(slots=True, kw_only=True)
class LocalCluster:
    """The brokers and the etcd that were started from one directory, as its file remembers them."""

    directory: Path
    base_port: int
    nodes: list[Node]
    etcd: LocalProcess | None = None
    settings: dict[str, str] = field(default_factory=dict)
    is_secured: bool = False
    """Whether brokers and clients log in, over TLS, with what is in `security_folder`."""

    @property
    def security_folder(self) -> Path:
        return self.directory / SECURITY_FOLDER

    @property
    def etcd_port(self) -> int:
        return self.base_port + ETCD_OFFSET

    def node(self, node_id: int) -> Node:
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        known = ", ".join(str(node.node_id) for node in self.nodes)
        raise ClusterError(f"there is no broker {node_id}; there are {known}")

    # On disk.

    @staticmethod
    def state_file(directory: Path) -> Path:
        return directory / "cluster.json"

    def save(self) -> None:
        document = {
            "base_port": self.base_port,
            "etcd": None if self.etcd is None else asdict(self.etcd),
            "settings": self.settings,
            "is_secured": self.is_secured,
            "nodes": [asdict(node) for node in self.nodes],
        }
        path = self.state_file(self.directory)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
        temporary.replace(path)

    @classmethod
    def load(cls, directory: Path) -> LocalCluster:
        path = cls.state_file(directory)
        if not path.exists():
            raise ClusterError(f"there is no cluster in {directory}: `millrace cluster up` starts one")
        try:
            document = orjson.loads(path.read_bytes())
            return cls(
                directory=directory,
                base_port=document["base_port"],
                nodes=[_node_of(record) for record in document["nodes"]],
                etcd=_process_of(document["etcd"]),
                settings=document["settings"],
                is_secured=document.get("is_secured", False),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"{path} is not what `millrace cluster up` wrote: {error!r}") from error

    def set(self, settings: Mapping[str, str]) -> bool:
        """Keep settings for all brokers that are started from now on; return whether any of them is new."""
        changed = {**self.settings, **settings}
        is_new = changed != self.settings
        if is_new:
            self.settings = changed
            self.save()
        return is_new

    def delete_data(self) -> None:
        """Delete what a cluster that is down has made, and nothing else that lies in its directory."""
        names = ["etcd", *(f"broker-{node.node_id}" for node in self.nodes)]
        for name in names:
            if (self.directory / name).exists():
                shutil.rmtree(self.directory / name)
            (self.directory / f"{name}.out").unlink(missing_ok=True)
        if self.is_secured:
            shutil.rmtree(self.security_folder, ignore_errors=True)
        self.state_file(self.directory).unlink()
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    # Security.

    def make_security(self) -> None:
        """Make an authority, a certificate for this machine, and users: one for the brokers, and `admin`."""
        from millrace.cli.secure.commands import make_all
        from millrace.cli.secure.settings_files import Place

        first = self.nodes[0].address
        servers = ",".join(node.address for node in self.nodes)
        place = Place(
            directory=self.security_folder,
            listen=first,
            advertised=first,
            data=self.directory / "broker-1",
            servers=servers,
        )
        make_all(place, "admin", (HOST, "localhost"), CERTIFICATE_DAYS)

    def security(self) -> SecurityOptions:
        """How the first user logs in."""
        if not self.is_secured:
            return PLAINTEXT
        file = self.security_folder / "client.librdkafka.properties"
        return read_security(parse_properties(file.read_text(encoding="utf-8")))

    # Starting.

    @property
    def is_running(self) -> bool:
        """Whether any of its processes is alive."""
        return any(node.is_running for node in self.nodes) or (
            self.etcd is not None and self.etcd.is_running()
        )

    def start_etcd(self) -> None:
        if self.etcd is not None and self.etcd.is_running():
            return
        for port in (self.etcd_port, self.etcd_port + 1):
            _require_free(port, "etcd")
        words = etcd_command(
            self.directory / "etcd", client_port=self.etcd_port, peer_port=self.etcd_port + 1
        )
        output = self.directory / "etcd.out"
        self.etcd = local_processes.start(words, output=output, environment=os.environ)
        self.save()
        self._wait("etcd", self.etcd, output, lambda: _answers(self.etcd_port, "/health"))

    def start_brokers(self) -> list[int]:
        """Start the brokers that do not run, and return their ids."""
        started = []
        for place, node in enumerate(self.nodes):
            if node.is_running:
                continue
            _require_free(node.port, f"broker {node.node_id}")
            _require_free(node.metrics_port, f"the metrics of broker {node.node_id}")
            process = local_processes.start(
                self._command(node), output=self.output_of(node), environment=_clean_environment()
            )
            self.nodes[place] = replace(node, process=process)
            self.save()
            started.append(node.node_id)
        for node in self.nodes:
            if node.node_id in started and node.process is not None:
                self._wait(
                    f"broker {node.node_id}",
                    node.process,
                    self.output_of(node),
                    lambda node=node: _answers(node.metrics_port, "/readyz"),
                )
        return started

    def output_of(self, node: Node) -> Path:
        return self.directory / f"broker-{node.node_id}.out"

    def _command(self, node: Node) -> list[str]:
        settings = {
            "node.id": str(node.node_id),
            "broker.rack": node.rack,
            "metadata.store": "etcd",
            "etcd.endpoints": f"http://{HOST}:{self.etcd_port}",
            "metrics.listener": f"{HOST}:{node.metrics_port}",
            **replication_settings(len(self.nodes)),
            **self.settings,
        }
        words = [sys.executable, "-c", _SERVE, "serve"]
        words += ["--data-dir", str(self.directory / f"broker-{node.node_id}")]
        if self.is_secured:
            # The file has all that is secret: arguments can be read by everybody on the machine.
            words += ["--config", str(self.security_folder / "broker.toml")]
            settings["listeners"] = settings["advertised.listeners"] = f"SASL_SSL://{node.address}"
        else:
            words += ["--listen", node.address]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        return words

    def _wait(self, name: str, process: LocalProcess, output: Path, is_ready: Any) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while not is_ready():
            if not process.is_running():
                raise ClusterError(f"{name} ended at its start:\n{local_processes.tail(output)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{name} is not ready after {START_DEADLINE_S:.0f} s, see {output}")
            time.sleep(0.05)

    # Stopping.

    def stop(self) -> list[str]:
        """Stop everything, brokers first, and return what had to be killed."""
        running = [(f"broker {node.node_id}", node.process) for node in self.nodes if node.is_running]
        killed = _stop_all(running)
        if self.etcd is not None and self.etcd.is_running():
            killed += _stop_all([("etcd", self.etcd)])
        self.nodes = [replace(node, process=None) for node in self.nodes]
        self.etcd = None
        self.save()
        return killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the cluster says of one broker."""

    leads: int = 0
    replicas: int = 0
    in_sync: int = 0
    is_controller: bool = False
    is_registered: bool = False


def standings(cluster: LocalCluster) -> tuple[dict[int, Standing], int, int]:
    """What the first broker that answers says of each one; then how many partitions have no leader, and how
    many lack replicas in sync."""
    for node in cluster.nodes:
        if not node.is_running:
            continue
        try:
            connection = Connection(HOST, node.port, 5.0, cluster.security())
        except ConnectionFailed:
            continue
        try:
            answer = connection.ask(ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=None))
        except ConnectionFailed:
            continue
        finally:
            connection.close()
        return _count(answer)
    return {}, 0, 0


def _count(answer: Any) -> tuple[dict[int, Standing], int, int]:
    leads: dict[int, int] = {}
    replicas: dict[int, int] = {}
    in_sync: dict[int, int] = {}
    leaderless = lacking = 0
    for partition in (partition for topic in answer.topics for partition in topic.partitions):
        leads[partition.leader_id] = leads.get(partition.leader_id, 0) + 1
        leaderless += partition.leader_id < 0
        lacking += len(partition.isr_nodes) < len(partition.replica_nodes)
        for counts, nodes in ((replicas, partition.replica_nodes), (in_sync, partition.isr_nodes)):
            for node_id in nodes:
                counts[node_id] = counts.get(node_id, 0) + 1
    registered = {broker.node_id for broker in answer.brokers}
    known = sorted({*registered, *replicas})
    return (
        {
            node_id: Standing(
                leads=leads.get(node_id, 0),
                replicas=replicas.get(node_id, 0),
                in_sync=in_sync.get(node_id, 0),
                is_controller=node_id == answer.controller_id,
                is_registered=node_id in registered,
            )
            for node_id in known
        },
        leaderless,
        lacking,
    )


def plan_nodes(count: int, *, base_port: int, workers_per_host: int) -> list[Node]:
    """Brokers 1, 2, ...; `workers_per_host` of them share a pretended host, which is their rack."""
    return [
        Node(
            node_id=place + 1,
            port=base_port + place,
            metrics_port=base_port + METRICS_OFFSET + place,
            rack=f"host-{place // workers_per_host + 1}",
        )
        for place in range(count)
    ]


def replication_settings(brokers: int) -> dict[str, str]:
    """What a cluster of this size can keep: three copies where there are three brokers."""
    copies = str(min(3, brokers))
    return {
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": str(min(2, brokers)),
    }


def _stop_all(processes: list[tuple[str, LocalProcess | None]]) -> list[str]:
    there = [(name, process) for name, process in processes if process is not None]
    for _, process in there:
        process.signal(signal.SIGTERM)
    killed = []
    for name, process in there:
        if not process.wait_gone(STOP_DEADLINE_S):
            process.signal(signal.SIGKILL)
            process.wait_gone(STOP_DEADLINE_S)
            killed.append(name)
    return killed


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=2.0) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _require_free(port: int, what: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ClusterError(
                f"port {port} for {what} is taken ({error.strerror}): choose another --base-port"
            ) from error


def _clean_environment() -> Mapping[str, str]:
    """The environment without settings that were meant for a single broker: all would share them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}


def _node_of(record: dict[str, Any]) -> Node:
    return Node(
        node_id=record["node_id"],
        port=record["port"],
        metrics_port=record["metrics_port"],
        rack=record["rack"],
        process=_process_of(record["process"]),
    )


def _process_of(record: dict[str, Any] | None) -> LocalProcess | None:
    return None if record is None else LocalProcess(record["pid"], record["started"])


def states(cluster: LocalCluster) -> Iterator[dict[str, Any]]:
    """One document for each broker, as `millrace cluster status --json` prints it."""
    found, _, _ = standings(cluster)
    for node in cluster.nodes:
        standing = found.get(node.node_id, Standing())
        yield {
            "id": node.node_id,
            "pid": node.process.pid if node.process is not None and node.is_running else None,
            "address": node.address,
            "rack": node.rack,
            "state": _state_word(node, standing),
            "controller": standing.is_controller,
            "partitions_led": standing.leads,
            "replicas": standing.replicas,
            "replicas_in_sync": standing.in_sync,
            "metrics": f"http://{HOST}:{node.metrics_port}/metrics",
        }


def _state_word(node: Node, standing: Standing) -> str:
    if not node.is_running:
        return "down"
    return "running" if standing.is_registered else "not registered"
