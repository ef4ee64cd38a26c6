"""`make test`: the tests that compute, beside those that start processes and wait for them.

Tests with real brokers and clients spend most of their time on waiting, for sessions, time-outs and starts.
Meanwhile those that compute run, with a lower priority: they take what time of the processors is left. Those
that measure time come behind, alone. The words of the command line go to all runs of pytest; what the tests
that compute say is shown when the first two are over.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Final

NOTHING_SELECTED: Final = 5
"""How pytest ends when no test fits to its words."""
PRIORITY: Final = "10"
PYTEST: Final = (sys.executable, "-m", "pytest")


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryFile() as output:
        computing = _start_computing(words, output)
        try:
            waiting_code = _run("waiting", words)
            computing_code = computing.wait()
        finally:
            if computing.poll() is None:
                computing.terminate()
                computing.wait()
        _say("The tests that compute, which ran meanwhile:")
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    _say("The tests that measure time:")
    return outcome(waiting_code, computing_code, _run("timed", words))


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


def _start_computing(words: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    # A cache of its own: each run would forget the failures of the other.
    cache = ("-o", "cache_dir=.pytest_cache/computing")
    return subprocess.Popen(
        ["nice", "-n", PRIORITY, *PYTEST, "--lane", "computing", *cache, *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
