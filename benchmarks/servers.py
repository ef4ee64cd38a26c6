"""The broker processes under test: how one of each system is started and ended."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tools.kafka_distribution import KafkaNode, free_port

HOST: Final = "127.0.0.1"
SHARED_SETTINGS: Final = {
    # What a round has written leaves the page cache before the next round: memory that the machine must first
    # find, or get from its host, costs more CPU time than either broker.
    "log.segment.delete.delay.ms": "500",
}
STOP_TIMEOUT_S: Final = 120.0


class Server(Protocol):
    """Broker processes, mostly one, that can be started and ended more than once on the same data."""

    @property
    def ports(self) -> Sequence[int]:
        """Where clients find them; one for each broker."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """All processes that belong to the system, brokers first."""
        ...

    @property
    def log_files(self) -> Sequence[Path]: ...
    def prepare(self) -> None: ...
    def start(self) -> None: ...
    def is_running(self) -> bool: ...
    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None: ...
    def kill(self) -> None: ...


class KafkaServer:
    """One Kafka node."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self.ports = (node.port,)

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._node.pid,)

    @property
    def log_files(self) -> tuple[Path, ...]:
        return (self._node.log_file,)

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
    """One Millrace broker."""

    def __init__(
        self, command: list[str], settings: Sequence[str], directory: Path, port: int | None = None
    ) -> None:
        """`port` where settings name it, too."""
        port = port or free_port()
        self.ports = (port,)
        self._command = [*command, "serve", "--data-dir", str(directory / "data")]
        if not any(setting.startswith("listeners=") for setting in settings):
            self._command += ["--listen", f"{HOST}:{port}"]
        if not any(setting.startswith("metrics.listener=") for setting in settings):
            # The HTTP server stays on, at a port that is not in anybody's way.
            settings = (f"metrics.listener={HOST}:0", *settings)
        self._command += [part for setting in settings for part in ("--set", setting)]
        self._directory = directory
        self._log_file = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        assert self._process is not None, "not started"
        return (self._process.pid,)

    @property
    def log_files(self) -> tuple[Path, ...]:
        return (self._log_file,)

    def prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        assert self._process is None, "already started"
        with self._log_file.open("ab") as log:
            # The broker gets a session of its own: Ctrl-C reaches only the benchmark, which then stops it.
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
