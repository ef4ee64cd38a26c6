"""What all generators share: reading their arguments, writing their result, counting their own CPU time."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class Stopwatch:
    """Wall time and this process's CPU time from the moment of creation."""

    def __init__(self) -> None:
        self._cpu_at_start = _own_cpu_s()
        self._started = time.perf_counter()

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    def cpu_s(self) -> float:
        return _own_cpu_s() - self._cpu_at_start


def run_generator(generate: Callable[[Mapping[str, Any]], Mapping[str, float]]) -> None:
    """The whole main program of a generator."""
    arguments = json.loads(sys.argv[1])
    print(json.dumps(dict(generate(arguments))), flush=True)


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
