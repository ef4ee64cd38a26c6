"""`python -m millrace.sim`: runs scenarios from seeds, reports how much was simulated and how fast, and for a
seed that fails the command that replays it."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from millrace.broker.watching import logs
from millrace.sim.cluster_scenarios import CLUSTER_SCENARIOS
from millrace.sim.run import run_scenario
from millrace.sim.runner import Finished, Job, Results, clock_s, play_all
from millrace.sim.scenarios import BY_NAME, SCENARIOS, SECONDS

SHOWN_MAX: Final = 10
RANDOM: Final = "random"
GROUPS: Final = {
    "all": [scenario.name for scenario in (*SCENARIOS, *CLUSTER_SCENARIOS)],
    "single": [scenario.name for scenario in SCENARIOS],
    "cluster": [scenario.name for scenario in CLUSTER_SCENARIOS],
}
RESULTS: Final = Path(".cache/sim/runs.jsonl")
BAR_WIDTH: Final = 30


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.log:
        logs.set_up("info", "text")
    if options.census:
        return _count_wakeups(options)
    results = None if options.record is None else Results(options.record)
    report = _Report(options)
    for finished in play_all(_jobs(options), processes=options.jobs, is_over=report.is_over):
        if results is not None:
            results.add(finished)
        report.add(finished)
    report.end()
    return 1 if report.failed_count else 0


def _jobs(options: argparse.Namespace) -> Iterator[Job]:
    names = GROUPS.get(options.scenario) or [options.scenario]
    for seed, name in itertools.product(options.seeds, names):
        yield Job(scenario=name, seed=seed, seconds=options.seconds)


class _Report:
    """Tells how the runs end: with a bar on a terminal, elsewhere with a line for each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._quiet = options.quiet
        self._began = clock_s()
        self._limit_s = None if options.minutes is None else options.minutes * 60
        self._total = len(options.seeds) * len(GROUPS.get(options.scenario) or [options.scenario])
        self._has_bar = sys.stderr.isatty() and not options.log
        self._count = 0
        self._simulated_s = 0.0
        self._cpu_s = 0.0
        self.failed_count = 0

    def is_over(self) -> bool:
        return self._limit_s is not None and clock_s() - self._began >= self._limit_s

    def add(self, finished: Finished) -> None:
        self._count += 1
        self._simulated_s += finished.simulated_s
        self._cpu_s += finished.cpu_s
        if finished.violations:
            self.failed_count += 1
        if finished.violations or not self._quiet:
            self._say(
                f"{'FAIL' if finished.violations else 'ok'}  seed {finished.seed}  {finished.scenario}  "
                f"{finished.simulated_s:.0f} s  {finished.speed:.0f}x  {finished.events} events  "
                f"{finished.digest[:16]}"
            )
        for violation in finished.violations[:SHOWN_MAX]:
            self._say(f"      {violation}")
        if len(finished.violations) > SHOWN_MAX:
            self._say(f"      and {len(finished.violations) - SHOWN_MAX} more")
        if finished.violations:
            self._say(f"      again: {finished.again}")
        self._draw()

    def end(self) -> None:
        self._wipe()
        took_s = clock_s() - self._began
        # Only the figure by CPU time can be compared where the machine does other things as well.
        self._say(
            f"{self._count} runs, {self._simulated_s / 3600:.2f} simulated hours in {took_s:.0f} s, "
            f"{self._simulated_s / max(took_s, 0.001):.0f} times as fast as real time "
            f"({self._simulated_s / max(self._cpu_s, 0.001):.0f} by the CPU time used), "
            f"{self.failed_count} failed"
        )

    def _say(self, text: str) -> None:
        self._wipe()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _draw(self) -> None:
        if not self._has_bar:
            return
        share = self._count / self._total
        if self._limit_s is not None:
            share = max(share, min((clock_s() - self._began) / self._limit_s, 1.0))
        full = round(share * BAR_WIDTH)
        sys.stderr.write(
            f"\r[{'#' * full}{'.' * (BAR_WIDTH - full)}] {self._count} of {self._total} runs, "
            f"{self._simulated_s / 3600:.1f} h, {self.failed_count} failed"
        )
        sys.stderr.flush()

    def _wipe(self) -> None:
        if self._has_bar:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _count_wakeups(options: argparse.Namespace) -> int:
    for job in _jobs(options):
        scenario = BY_NAME[job.scenario]
        outcome = run_scenario(job.seed, scenario.play, scenario.plan, seconds=job.seconds, with_census=True)
        sys.stdout.write(
            f"seed {job.seed}  {job.scenario}  {outcome.simulated_s:.0f} s, of which {outcome.quiet_s:.0f} s "
            f"quiet, {outcome.callbacks} callbacks\n"
        )
        for line in outcome.census:
            sys.stdout.write(line + "\n")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m millrace.sim", description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default=range(1, 11), metavar="A-B", help="seeds, as 1-100 or 7"
    )
    parser.add_argument(
        "--scenario",
        default=RANDOM,
        help=f"one of {', '.join(BY_NAME)}, or {', '.join(GROUPS)} (default: {RANDOM})",
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=SECONDS / 3600,
        help="how long faults go on in each run (default: a minute)",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes of real time")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RESULTS,
        metavar="FILE",
        help=f"add a line for each run to a file (default: {RESULTS}), for `python -m millrace.sim.record`",
    )
    parser.add_argument("--quiet", action="store_true", help="report failures and the sum only")
    parser.add_argument("--log", action="store_true", help="show what happens, and what the brokers log")
    parser.add_argument("--census", action="store_true", help="count what runs, per simulated second")
    options = parser.parse_args(arguments)
    if options.scenario not in GROUPS and options.scenario not in BY_NAME:
        known = ", ".join((*BY_NAME, *GROUPS))
        parser.error(f"there is no scenario {options.scenario}; there are: {known}")
    if options.hours <= 0:
        parser.error(f"--hours {options.hours:g}: must be more than 0")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least one run at a time")
    options.seconds = options.hours * 3600
    return options


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        _refuse(text)
    if not seeds:
        _refuse(text)
    return seeds


def _refuse(text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds: give one as 7, or several as 1-100")


if __name__ == "__main__":
    sys.exit(main())
