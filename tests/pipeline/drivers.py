"""Spark programs in processes of their own, which tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@contextmanager
def driver(module: str, log: Path, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
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
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
