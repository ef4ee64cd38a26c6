"""Processes that outlive the command that started them. We know them again by pid and time of start, so that
we never touch a pid that another process has by now."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_START_TIME_FIELD: Final = 19
"""Its place in /proc/<pid>/stat, counted from behind the name of the program."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """One process, told from a later one with the same pid by its time of start."""

    pid: int
    started: str
    """The kernel's ticks when it started."""

    def is_running(self) -> bool:
        return _start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is gone."""
        if not self.is_running():
            return False
        os.kill(self.pid, number)
        return True

    def wait_gone(self, deadline_s: float) -> bool:
        deadline = time.monotonic() + deadline_s
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            _reap(self.pid)
            time.sleep(0.02)
        return True


def start(words: Sequence[str], *, output: Path, environment: Mapping[str, str]) -> LocalProcess:
    """Start a process apart from this terminal, with its output appended to a file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as file:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(environment),
        )
    # The process is to live on, and nobody waits for it here.
    process.returncode = 0
    return LocalProcess(process.pid, _start_time(process.pid) or "")


def tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def _start_time(pid: int) -> str | None:
    """None for a process that is gone, or dead and not yet forgotten by its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_START_TIME_FIELD]


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
