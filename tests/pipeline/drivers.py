"""Spark programs in processes of their own, which tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEADLINE_S: Final = 240.0
TAIL: Final = 3000


class Driver:
    """A running Spark program and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something that the program brings about; fail with its last lines if it ends before."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            code = self._process.poll()
            assert code is None, f"the driver ended with {code} before {what}:\n{self._tail()}"
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}:\n{self._tail()}"
            time.sleep(0.02)

    def finish(self) -> None:
        """Wait for the program's own end, which is to be a good one."""
        code = self._process.wait(DEADLINE_S)
        assert code == 0, f"the driver ended with {code}:\n{self._tail()}"

    def kill(self) -> None:
        """Kill it with its JVM and its workers."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(60)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-TAIL:]


@contextmanager
def driver(module: str, log: Path, words: Sequence[str]) -> Iterator[Driver]:
    """Runs `tests.pipeline.<module>` in a process group of its own, which ends with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.pipeline.{module}", *words],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    running = Driver(process, log)
    try:
        yield running
    finally:
        running.kill()
