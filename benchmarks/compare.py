"""Whether a change made Millrace dearer: two of its commits in turns, by the CPU time of their brokers.

    git worktree add ../before COMMIT
    python -m benchmarks.compare --before "env PYTHONPATH=../before/src .venv/bin/millrace" \\
        --before-name COMMIT

CPU time for each request and each gigabyte is what a commit is judged by: it moves less from round to round
than rates do, which depend on the client and on what else the machine does. The least of all rounds counts:
neighbours on a shared machine, cold caches and a loop that happens to be woken more often only add to it, by
a third at times.

With `--guard acls` or `--guard quotas` the same code is measured twice: with 10,000 permissions or with
quotas, beside none.

    python -m benchmarks.compare --guard acls --instructions

With `--instructions` the brokers run under callgrind, which counts their instructions: neighbours add none,
but workloads that run for a time count what a broker does by the clock as well, which weighs more on a slow
machine.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.brokers import BrokerFactory, BrokerFailed, System, default_millrace
from benchmarks.guards import GUARDS
from benchmarks.instructions import CALLGRIND, NotCounted, require_callgrind
from benchmarks.metrics import Metric, Sample
from benchmarks.profiles import COUNTED, QUICK, SMOKE, STANDARD, Profile
from benchmarks.progress import Progress
from benchmarks.report import number_text
from benchmarks.runner import Runner
from benchmarks.workloads import cluster_workloads, shared_workloads, solo_workloads
from benchmarks.workloads.base import SharedWorkload, SoloWorkload
from benchmarks.workloads.groups import QueueIdle
from benchmarks.workloads.spark_read import SparkRead
from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution, KafkaUnavailable, locate

RESULTS: Final = PROJECT_ROOT / "benchmarks" / "results"
WORK: Final = PROJECT_ROOT / ".cache" / "benchmarks"
CPU_SUFFIX: Final = ".cpu"
DEARER_MAX: Final = 1.03
"""A line passes when the CPU time of now is at most this much of that before."""
DEFAULT_ROUNDS: Final = 4
COUNTED_ROUNDS: Final = 2
NOT_COMPARED: Final = frozenset({SparkRead.name, QueueIdle.name})
"""What counts the CPU time of Spark, and not of brokers; and what commits of before have not."""
COUNTED_UNITS: Final = {
    "s/GB": "10^9 instructions/GB",
    "µs/req": "10^3 instructions/req",
    "µs/message": "10^3 instructions/message",
    "% of a core": "10^7 instructions/s",
}
"""What the units of CPU time become where a billion instructions stand for a second of it."""
COUNTED_SETTINGS: Final = ("socket.idle.poll.us=0",)
"""A loop that looks for the next request does so for a time, whatever it can do in it."""
PLAIN_WIDTH: Final = 140
INTERRUPTED: Final = 130
FAILED: Final = 1
PROFILES: Final = {profile.name: profile for profile in (STANDARD, QUICK, SMOKE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one figure was before and is now."""

    key: str
    title: str
    unit: str
    before_rounds: tuple[float, ...]
    now_rounds: tuple[float, ...]

    @property
    def before(self) -> float:
        return median(self.before_rounds)

    @property
    def now(self) -> float:
        return median(self.now_rounds)

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.now / self.before

    @property
    def least_ratio(self) -> float:
        """Of the least of all rounds."""
        return min(self.now_rounds) / min(self.before_rounds)

    @property
    def round_ratios(self) -> tuple[float, ...]:
        """Of each round by itself: how far they lie apart says how much the ratio can be trusted."""
        return tuple(now / before for before, now in zip(self.before_rounds, self.now_rounds, strict=True))

    @property
    def is_judged(self) -> bool:
        return self.key.endswith(CPU_SUFFIX)

    @property
    def is_within_limit(self) -> bool:
        return self.least_ratio <= DEARER_MAX


def changes(metrics: Sequence[Metric], samples: Sequence[Sample]) -> list[Change]:
    """Every figure that both commits have, in the order of `metrics`."""
    found = []
    for metric in metrics:
        before = _by_round(samples, metric.key, System.BEFORE)
        now = _by_round(samples, metric.key, System.MILLRACE)
        rounds = [each for each in sorted(now) if before.get(each)]
        if not metric.is_compared or not rounds:
            continue
        found.append(
            Change(
                key=metric.key,
                title=metric.title,
                unit=metric.unit,
                before_rounds=tuple(before[each] for each in rounds),
                now_rounds=tuple(now[each] for each in rounds),
            )
        )
    return found


def counted(found: Sequence[Change]) -> list[Change]:
    """Only what was counted, in its own units: rates of brokers under callgrind say nothing."""
    return [
        replace(
            change,
            title=change.title.replace("CPU", "instructions"),
            unit=COUNTED_UNITS.get(change.unit, change.unit),
        )
        for change in found
        if change.is_judged
    ]


def judged_workloads(
    distribution: KafkaDistribution | None, profile: Profile, only: Sequence[str]
) -> tuple[list[SharedWorkload], list[SharedWorkload], list[SoloWorkload]]:
    """The workloads on one broker, on a cluster, and alone, that tell the CPU time of brokers."""

    def is_wanted(workload: SharedWorkload | SoloWorkload) -> bool:
        if only:
            return workload.name in only
        tells_cpu = any(each.key.endswith(CPU_SUFFIX) for each in workload.metrics(profile))
        return tells_cpu and workload.name not in NOT_COMPARED

    shared = [each for each in shared_workloads(distribution) if is_wanted(each)]
    clustered = [each for each in cluster_workloads() if is_wanted(each)]
    solo = [each for each in solo_workloads() if is_wanted(each)]
    unknown = set(only) - {each.name for each in [*shared, *clustered]} - {each.name for each in solo}
    if unknown:
        raise click.UsageError(f"no such workload here: {', '.join(sorted(unknown))}")
    return shared, clustered, solo


@click.command(help="Measure two commits of Millrace in turns.")
@click.option(
    "--before",
    "before_command",
    metavar="COMMAND",
    help="The `millrace` of before; with --guard this one is the default.",
)
@click.option("--before-name", metavar="COMMIT", help="The commit of before, for the record.")
@click.option(
    "--guard",
    type=click.Choice(GUARDS),
    help="Let the Millrace of now check 10,000 permissions, or quotas, that hold nobody up.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=DEFAULT_ROUNDS, show_default=True)
@click.option(
    "--profile", "profile_name", type=click.Choice(list(PROFILES)), default=QUICK.name, show_default=True
)
@click.option(
    "--instructions",
    "is_counted",
    is_flag=True,
    help="Count instructions instead of CPU time, in at most two short rounds, under valgrind's callgrind.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Measure this workload only; may be repeated.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go.")
@click.option("--no-files", is_flag=True, help="Print the table and write no files.")
def main(
    *,
    before_command: str | None,
    before_name: str | None,
    guard: str | None,
    rounds: int,
    profile_name: str,
    is_counted: bool,
    only: tuple[str, ...],
    results: Path,
    no_files: bool,
) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    if before_command is None or before_name is None:
        if guard is None:
            raise click.UsageError("--before and --before-name say what to compare with, or --guard does")
        before_command, before_name = before_command or shlex.quote(default_millrace()), f"without-{guard}"
    profile = COUNTED if is_counted else PROFILES[profile_name]
    rounds = min(rounds, COUNTED_ROUNDS) if is_counted else rounds
    profile = replace(profile, rounds=rounds, start_ups=rounds)
    signal.signal(signal.SIGTERM, _interrupt)
    WORK.mkdir(parents=True, exist_ok=True)
    commit, date, load_before = machine.commit(), datetime.now(UTC), machine.other_load()
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(dir=WORK, prefix="compare-") as run_dir:
            factory = _factory(Path(run_dir), before_command, guard, is_counted=is_counted)
            shared, clustered, solo = judged_workloads(factory.distribution, profile, only)
            if guard is not None:
                # The claim is about single brokers that stay up.
                clustered, solo = [], []
            try:
                with Progress(console) as progress:
                    runner = Runner(factory, profile, progress)
                    runner.run(shared, solo, clustered)
            finally:
                factory.close()
    except KeyboardInterrupt:
        console.print("interrupted; all brokers have been ended", style="yellow")
        sys.exit(INTERRUPTED)
    except (BrokerFailed, NotCounted) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(FAILED)
    found = changes(runner.outcome.metrics, runner.outcome.samples)
    if is_counted:
        found = counted(found)
    facts = {
        "date": date.isoformat(timespec="seconds"),
        "commit": commit,
        "before": before_name,
        "profile": profile.name,
        "rounds": rounds,
        "minutes": round((time.monotonic() - started) / 60),
        "load_before": round(load_before, 2),
        "machine": machine.describe(),
        "failures": runner.outcome.failures,
    }
    _print(console, found, f"Millrace {before_name} and {commit}, {rounds} rounds in turns, medians")
    if not no_files:
        results.mkdir(parents=True, exist_ok=True)
        kind = "-instructions" if is_counted else ""
        write_files(results / f"{date:%Y-%m-%d}-{commit}-after-{before_name}{kind}", facts, found)
    if runner.outcome.failures:
        sys.exit(FAILED)


def verdict_text(change: Change) -> str:
    if not change.is_judged:
        return ""
    return "pass" if change.is_within_limit else "FAIL"


def judgement(found: Sequence[Change]) -> str:
    judged = [change for change in found if change.is_judged]
    passed = sum(change.is_within_limit for change in judged)
    return f"{passed} of {len(judged)} lines of cost at most {DEARER_MAX:g}x of before, by the least round"


def write_files(stem: Path, facts: dict[str, object], found: Sequence[Change]) -> None:
    """The figures as JSON, a table in Markdown, and a picture of the lines of cost."""
    # Late: matplotlib takes a second to import, and no measurement needs it.
    from benchmarks.plot import write_changes_plot

    rows = [{**asdict(change), "ratio": change.ratio, "least_ratio": change.least_ratio} for change in found]
    stem.with_name(f"{stem.name}.json").write_text(json.dumps({**facts, "metrics": rows}, indent=1) + "\n")
    picture = stem.with_name(f"{stem.name}.png")
    judged = [(change.title, change.least_ratio, change.round_ratios) for change in found if change.is_judged]
    write_changes_plot(judged, DEARER_MAX, f"Cost, {facts['commit']} over {facts['before']}", picture)
    extent = f"{facts['date']}, profile {facts['profile']}, {facts['rounds']} rounds in turns"
    lines = [
        f"# Millrace {facts['commit']} beside {facts['before']}",
        "",
        f"{extent}, {facts['minutes']} minutes; load before it {facts['load_before']}. {judgement(found)}.",
        "",
        "| work | unit | before | now | ratio | of the least | of each round | verdict |",
        "|---|---|---:|---:|---:|---:|---|---|",
        *(f"| {' | '.join(_cells(change))} |" for change in found),
        "",
        f"![Cost compared]({picture.name})",
    ]
    stem.with_name(f"{stem.name}.md").write_text("\n".join(lines) + "\n")


def _cells(change: Change) -> tuple[str, ...]:
    ratios = change.round_ratios
    return (
        change.title,
        change.unit,
        number_text(change.before),
        number_text(change.now),
        f"{change.ratio:.3f}x",
        f"{change.least_ratio:.3f}x",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        verdict_text(change),
    )


def _print(console: Console, found: Sequence[Change], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("work", "unit", "before", "now", "ratio", "of the least", "of each round", "verdict"):
        is_text = name in {"work", "unit", "of each round", "verdict"}
        table.add_column(name, justify="left" if is_text else "right")
    for change in found:
        is_dearer = change.is_judged and not change.is_within_limit
        table.add_row(*_cells(change), style="red" if is_dearer else None)
    console.print(table)
    console.print(judgement(found), markup=False, highlight=False)


def _by_round(samples: Sequence[Sample], key: str, system: System) -> dict[int, float]:
    return {each.round: each.value for each in samples if each.metric == key and each.system is system}


def _factory(run_dir: Path, before_command: str, guard: str | None, *, is_counted: bool) -> BrokerFactory:
    if not is_counted:
        return BrokerFactory(run_dir, _kafka(), before_command=before_command, guard=guard)
    require_callgrind()
    prefix = shlex.join(CALLGRIND)
    return BrokerFactory(
        run_dir,
        _kafka(),
        millrace_command=f"{prefix} {shlex.quote(default_millrace())}",
        before_command=f"{prefix} {before_command}",
        millrace_settings=COUNTED_SETTINGS,
        guard=guard,
    )


def _kafka() -> KafkaDistribution | None:
    """Kafka's jars, where they can be had, for the Java client."""
    try:
        return locate()
    except KafkaUnavailable:
        return None


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
