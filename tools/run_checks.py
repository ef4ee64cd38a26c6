"""`make check`: format, lint, types, import rules and unit tests, one beside another on each processor.

The unit tests run in parts, the larger ones first, so that all processors have work until the end. A step
that passes says one line when it is over; of one that fails everything is shown, in one piece.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
UNIT_TESTS: Final = ROOT / "tests" / "unit"
PARTS_PER_PROCESSOR: Final = 3
"""Of the unit tests. Each part costs a second to start; with few of them a processor is idle at the end."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: tuple[str, ...]
    hint: str = ""
    """What to do when it fails, unless its output says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    step: Step
    seconds: float
    code: int
    output: str

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1].strip("= ") if lines else ""


def main() -> int:
    started = time.monotonic()
    processors = len(os.sched_getaffinity(0))
    done = list(run(all_steps(PARTS_PER_PROCESSOR * processors), processors, _say))
    failed = [each.step.name for each in done if each.code]
    verdict = f"failed: {', '.join(failed)}" if failed else f"all {len(done)} steps passed"
    _say(f"{verdict}, in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def run(steps: Sequence[Step], slots: int, say: Callable[[str], None]) -> Iterator[Done]:
    """Run all steps, some at the same time, and say how each one ended as soon as it did."""
    executor = ThreadPoolExecutor(slots)
    try:
        running = [executor.submit(_run_step, step) for step in steps]
        for count, future in enumerate(as_completed(running), start=1):
            done = future.result()
            if done.code:
                say(f"{done.output.rstrip()}\n{done.step.hint}".rstrip())
            ended = f"FAILED with {done.code}" if done.code else done.last_line
            say(f"[{count}/{len(steps)}] {done.step.name}: {ended} ({done.seconds:.1f} s)")
            yield done
    finally:
        # Only if somebody has lost patience is there anything left to begin.
        executor.shutdown(wait=False, cancel_futures=True)


def _run_step(step: Step) -> Done:
    started = time.monotonic()
    ended = subprocess.run(
        step.command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.monotonic() - started
    return Done(step=step, seconds=seconds, code=ended.returncode, output=ended.stdout)


def all_steps(parts_count: int) -> list[Step]:
    return [
        Step("format", (_program("ruff"), "format", "--check", "."), hint="run 'make format'"),
        Step("lint", (_program("ruff"), "check", ".")),
        Step("types", (_program("mypy"),)),
        *(_tests(part) for part in parts_of(UNIT_TESTS, parts_count)),
        Step("import rules", (_program("lint-imports"), "--no-logo")),
    ]


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _tests(part: Sequence[Path]) -> Step:
    names = [path.name for path in part]
    # A cache of its own: each run would forget the failures of the others.
    cache = ("-o", f"cache_dir=.pytest_cache/unit-{names[0]}")
    pytest = (sys.executable, "-m", "pytest", "--quiet", "-m", "not slow", *cache)
    return Step(f"unit tests: {', '.join(names)}", (*pytest, *(str(path.relative_to(ROOT)) for path in part)))


def parts_of(folder: Path, count: int) -> list[list[Path]]:
    """What is in the folder, in so many parts of about the same size, the larger ones first."""
    sizes = {path: size for path in sorted(folder.iterdir()) if (size := _tests_bytes(path))}
    parts: list[list[Path]] = [[] for _ in range(count)]

    def size_of(part: list[Path]) -> int:
        return sum(sizes[path] for path in part)

    for path in sorted(sizes, key=lambda path: -sizes[path]):
        min(parts, key=size_of).append(path)
    return sorted(filter(None, parts), key=size_of, reverse=True)


def _tests_bytes(path: Path) -> int:
    """How much source of tests there is: how long they take goes roughly with it."""
    tests = path.rglob("test_*.py") if path.is_dir() else [path] if path.match("test_*.py") else []
    return sum(test.stat().st_size for test in tests)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
