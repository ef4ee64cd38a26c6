"""What all fuzzers take from the command line, and what they print."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Protocol


class Described(Protocol):
    """What a fuzzer has found."""

    def describe(self) -> str: ...


def fuzz(
    run: Callable[[float, int, str], tuple[int, Sequence[Described]]],
    *,
    about: str | None,
    what: str,
    unit: str,
    example: str,
) -> int:
    """Run a fuzzer as the options say; the exit code is 1 if it found a fault."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", default="", help=f"part of a target's name, such as {example!r}")
    options = parser.parse_args()
    print(f"fuzzing {what}, seed {options.seed}")
    tried, faults = run(options.seconds, options.seed, options.only)
    for fault in faults:
        print(fault.describe())
    print(f"{tried} {unit}, {len(faults)} faults")
    return 1 if faults else 0
