"""`make test`: tests that start processes and wait for them, and beside them those that compute.

Tests with real brokers and clients spend most of their time on waiting, for sessions, time-outs and starts:
two lanes of them run side by side. Meanwhile the tests on Spark run, and behind those with clients the ones
that compute, with a lower priority: they take the processor time that is left. The tests that measure time
come last, alone. The words of the command line go to all runs of pytest. The tests with clients are shown
while they run; what the others print is shown when all are over.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final, NamedTuple

NOTHING_SELECTED: Final = 5
"""How pytest ends when no test fits its words."""
PRIORITY: Final = "10"
PYTEST: Final = (sys.executable, "-m", "pytest")
SEEN: Final = "clients"
BEHIND: Final = "computing"
"""Begins when the lane that is seen is over, which is the shortest of those that wait."""
BESIDE: Final = ("faults", "spark")
"""Lanes that run all the while."""
PATIENT: Final = ("computing", "spark")
"""They wait for no process, so that no process should wait for them."""


class Ended(NamedTuple):
    lane: str
    code: int
    output: bytes


def main(words: Sequence[str]) -> int:
    with ExitStack() as stack:
        executor = ThreadPoolExecutor(len(BESIDE))
        # Only if somebody has lost patience is there anything left to begin.
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        running = [executor.submit(_run_beside, lane, words) for lane in BESIDE]
        seen = _run(SEEN, words)
        beside = [_run_beside(BEHIND, words), *(run.result() for run in running)]
    for lane, _, output in beside:
        _say(f"The tests of the lane {lane!r}, which ran meanwhile:")
        sys.stdout.buffer.write(output)
    _say("The tests that measure time:")
    return outcome(seen, *(ended.code for ended in beside), _run("timed", words))


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


def _run_beside(lane: str, words: Sequence[str]) -> Ended:
    # Each run has a cache of its own, or it would forget the failures of the others.
    cache = ("-o", f"cache_dir=.pytest_cache/{lane}")
    priority = ("nice", "-n", PRIORITY) if lane in PATIENT else ()
    with tempfile.TemporaryFile() as output:
        ended = subprocess.run(
            [*priority, *PYTEST, "--lane", lane, *cache, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        return Ended(lane, ended.returncode, output.read())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
