"""One broker as a child process: ready when it answers, stopped by signal, its output kept in a file."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

START_DEADLINE_S: Final = 60.0
STOP_DEADLINE_S: Final = 30.0
# An ApiVersions v0 request, correlation id 7, client id "probe".
_PROBE: Final = struct.pack(">hhih5s", 18, 0, 7, 5, b"probe")


class BrokerDied(Exception):
    """The process ended while it was expected to run; the message carries the end of its output."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(holds: Callable[[], bool], deadline_s: float = 60.0, pause_s: float = 0.05) -> None:
    """Wait until `holds()`; fail if it never does."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {holds}"
        time.sleep(pause_s)


def throughout(holds: Callable[[], bool], for_s: float, pause_s: float = 0.05) -> None:
    """Watch that `holds()` stays so for a while; fail at the first moment at which it does not."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert holds(), f"not any more: {holds}"
        time.sleep(pause_s)


UNHURRIED: Final = {"log.initial.task.delay.ms": "3600000"}
"""Tests write old timestamps: retention must not take its first look, 30 s after the start, between two of
their steps."""


class BrokerProcess:
    """A broker on 127.0.0.1. Subclasses say how it is started; everything else is the same for both."""

    kind: str = "broker"

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.settings: dict[str, str] = {**UNHURRIED, **(settings or {})}
        self.host = "127.0.0.1"
        self.port = free_port()
        self.output_path = directory / f"{self.kind}.out"
        self.started_in_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.kind} was never started"
        return self._process.pid

    def command(self) -> Sequence[str]:
        raise AssertionError("a subclass names the command")

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def partition_dirs(self) -> list[Path]:
        """The directories of partitions on disk, without those given up."""
        directories = (path.parent for path in self.data_dir.glob("*/partition.metadata"))
        return sorted(path for path in directories if not path.name.endswith(("-delete", "-stray")))

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process without waiting for it to be ready."""
        assert not self.is_running(), f"{self.kind} runs already"
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                cwd=self.directory,
                start_new_session=True,
            )
        return self._process

    def start(self, deadline_s: float = START_DEADLINE_S) -> None:
        started = time.monotonic()
        self.launch()
        self.wait_ready(deadline_s)
        self.started_in_s = time.monotonic() - started

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        deadline = time.monotonic() + deadline_s
        while not self.answers():
            if not self.is_running():
                raise BrokerDied(f"{self.kind} ended at start with {self.exit_code()}:\n{self.output_tail()}")
            if time.monotonic() > deadline:
                raise BrokerDied(f"{self.kind} not ready after {deadline_s} s:\n{self.output_tail()}")
            time.sleep(0.02)

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Whether an ApiVersions request gets its answer."""
        try:
            with socket.create_connection((self.host, self.port), timeout=timeout_s) as connection:
                connection.sendall(struct.pack(">i", len(_PROBE)) + _PROBE)
                head = connection.recv(8, socket.MSG_WAITALL)
                return len(head) == 8 and struct.unpack(">ii", head)[1] == 7
        except OSError:
            return False

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait_exit(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        assert self._process is not None
        return self._process.wait(deadline_s)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM and wait; the exit code. SIGKILL after the deadline, which fails the test."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                return self._process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise BrokerDied(
                    f"{self.kind} did not stop within {deadline_s} s:\n{self.output_tail()}"
                ) from None
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is closed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_DEADLINE_S)

    def pause(self) -> None:
        """SIGSTOP: it stands still, and the system goes on receiving for it."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """For fixtures: stop if it runs, and never leave it behind."""
        if self.is_running():
            try:
                self.stop()
            except BrokerDied:
                self.kill()
                raise

    def output(self) -> str:
        return self.output_path.read_text(errors="replace") if self.output_path.exists() else ""

    def output_tail(self, lines: int = 40) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def resident_bytes(self) -> int:
        """Resident memory of the broker process, from the kernel."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))
