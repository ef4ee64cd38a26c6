"""Plays many runs, one after the other or in several processes, and keeps in a file what each came to."""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from millrace.sim.run import run_scenario

RUNS_PER_PROCESS: Final = 50
"""A process ends after so many runs, so that what it never gives back stays little."""
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Histories are long lists of small objects that live to the end: a collector that looks at them often finds
nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be played."""

    scenario: str
    seed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a run came to, in plain values that can be sent between processes and kept as JSON."""

    scenario: str
    seed: int
    asked_s: float
    simulated_s: float
    quiet_s: float
    events: int
    callbacks: int
    acked: int
    wall_s: float
    cpu_s: float
    digest: str
    violations: list[str] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """How many times as fast as real time it was, by the CPU time used: what else the machine does has no
        part in it."""
        return self.simulated_s / max(self.cpu_s, 0.001)

    @property
    def again(self) -> str:
        return (
            f"python -m millrace.sim --seeds {self.seed} --scenario {self.scenario} "
            f"--hours {self.asked_s / 3600:g} --log"
        )


def play(job: Job) -> Finished:
    """Play one run in this process."""
    from millrace.sim.scenarios import BY_NAME

    scenario = BY_NAME[job.scenario]
    gc.set_threshold(*GC_THRESHOLDS)
    wall_s, cpu_s = clock_s(), time.process_time()
    outcome = run_scenario(job.seed, scenario.play, scenario.plan, seconds=job.seconds)
    return Finished(
        scenario=job.scenario,
        seed=job.seed,
        asked_s=job.seconds,
        simulated_s=round(outcome.simulated_s, 3),
        quiet_s=round(outcome.quiet_s, 3),
        events=outcome.events,
        callbacks=outcome.callbacks,
        acked=outcome.acked,
        wall_s=round(clock_s() - wall_s, 3),
        cpu_s=round(time.process_time() - cpu_s, 3),
        digest=outcome.digest,
        violations=[str(violation) for violation in outcome.violations],
    )


def play_all(jobs: Iterable[Job], *, processes: int, is_over: Callable[[], bool]) -> Iterator[Finished]:
    """The results as they come. No run begins when `is_over`; those under way are finished."""
    if processes <= 1:
        for job in jobs:
            if is_over():
                return
            yield play(job)
        return
    with ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), max_tasks_per_child=RUNS_PER_PROCESS
    ) as pool:
        under_way: dict[Future[Finished], None] = {}
        for job in jobs:
            if is_over():
                break
            under_way[pool.submit(play, job)] = None
            if len(under_way) >= processes:
                yield from _first_of(under_way)
        while under_way:
            yield from _first_of(under_way)


def _first_of(under_way: dict[Future[Finished], None]) -> Iterator[Finished]:
    done, _ = wait(under_way, return_when=FIRST_COMPLETED)
    for future in [each for each in under_way if each in done]:
        del under_way[future]
        yield future.result()


class Results:
    """A line of JSON for every run that has finished, in a file that is not part of the source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commit = commit_of_source()
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, finished: Finished) -> None:
        line = json.dumps({"commit": self._commit, **asdict(finished)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def read_results(path: Path) -> list[tuple[str, Finished]]:
    """Each run with the commit that it ran on."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry: dict[str, Any] = json.loads(line)
        commit = entry.pop("commit")
        found.append((commit, Finished(**entry)))
    return found


def commit_of_source() -> str:
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(  # noqa: TID251 - outside of any simulation
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


def clock_s() -> float:
    return time.perf_counter()  # noqa: TID251 - how fast the simulation is
