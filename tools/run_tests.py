"""`make test`: tests that start processes and wait for them, and beside them those that compute.

Tests with real brokers and clients spend most of their time on waiting, for sessions, time-outs and starts.
Meanwhile those that compute run, and after them those on Spark, with a lower priority: they take what time of
the processors is left. Those that measure time come behind, alone. The words of the command line go to all
runs of pytest; what the tests beside say is shown when both sides are over.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final

NOTHING_SELECTED: Final = 5
"""How pytest ends when no test fits to its words."""
PRIORITY: Final = "10"
PYTEST: Final = (sys.executable, "-m", "pytest")


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryFile() as output, ThreadPoolExecutor(1) as executor:
        beside = [executor.submit(_run_beside, lane, words, output) for lane in ("computing", "spark")]
        try:
            codes = [_run("waiting", words), *(run.result() for run in beside)]
        finally:
            # Only if somebody has lost patience is there anything left to begin.
            executor.shutdown(wait=False, cancel_futures=True)
        _say("The tests that compute, and those on Spark, which ran meanwhile:")
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    _say("The tests that measure time:")
    return outcome(*codes, _run("timed", words))


def _run(lane: str, words: Sequence[str]) -> int:
    return subprocess.run([*PYTEST, "--lane", lane, *words], check=False).returncode


def _say(line: str) -> None:
    print(f"\n{line}\n", flush=True)


def outcome(*codes: int) -> int:
    """The first failure; a run without tests counts only where no run has any."""
    failures = [code for code in codes if code not in (0, NOTHING_SELECTED)]
    if failures:
        return failures[0]
    return 0 if 0 in codes else NOTHING_SELECTED


def _run_beside(lane: str, words: Sequence[str], output: IO[bytes]) -> int:
    # A cache of its own: each run would forget the failures of the others.
    cache = ("-o", f"cache_dir=.pytest_cache/{lane}")
    return subprocess.run(
        ["nice", "-n", PRIORITY, *PYTEST, "--lane", lane, *cache, *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
