"""The command line of the benchmark."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console

from benchmarks import machine
from benchmarks.brokers import BrokerFactory, BrokerFailed
from benchmarks.profiles import QUICK, SMOKE, STANDARD, Profile
from benchmarks.progress import Progress
from benchmarks.report import Report, make_report, print_table, write_json, write_markdown
from benchmarks.runner import Runner
from benchmarks.workloads import (
    cluster_workloads,
    queue_workloads,
    secured_workloads,
    shared_workloads,
    solo_workloads,
)
from benchmarks.workloads.base import SharedWorkload, SoloWorkload
from millrace.cli.cluster.etcd import EtcdMissing, find_etcd
from tools.kafka_distribution import PROJECT_ROOT, KafkaDistribution, KafkaUnavailable, locate

RESULTS: Final = PROJECT_ROOT / "benchmarks" / "results"
WORK: Final = PROJECT_ROOT / ".cache" / "benchmarks"
BUSY_LOAD: Final = 0.5
PLAIN_WIDTH: Final = 140
INTERRUPTED: Final = 130
FAILED: Final = 1


@click.command(help="Measure Millrace and Apache Kafka side by side on this machine.")
@click.option("--quick", is_flag=True, help="One short round of everything.")
@click.option("--smoke", is_flag=True, help="The smallest amounts: checks the benchmark itself, not speed.")
@click.option("--only", multiple=True, metavar="NAME", help="Measure this workload only; may be repeated.")
@click.option("--rounds", type=click.IntRange(1, 50), help="Rounds for each interleaved workload.")
@click.option("--millrace-only", is_flag=True, help="Measure Millrace alone, without Kafka.")
@click.option("--millrace-command", metavar="COMMAND", help="Another `millrace`, such as that of a checkout.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting for Millrace.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="Where the files go.")
@click.option("--no-files", is_flag=True, help="Print the table and write no files.")
@click.option("--list", "is_list", is_flag=True, help="List the workloads and end.")
def main(
    *,
    quick: bool,
    smoke: bool,
    only: tuple[str, ...],
    rounds: int | None,
    millrace_only: bool,
    millrace_command: str | None,
    settings: tuple[str, ...],
    results: Path,
    no_files: bool,
    is_list: bool,
) -> None:
    # Where there is no terminal to ask for its width, the table still has one line for each figure.
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    if is_list:
        _list_workloads(console)
        return
    profile = SMOKE if smoke else QUICK if quick else STANDARD
    profile = replace(profile, rounds=rounds, start_ups=rounds) if rounds else profile
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(dir=_work_dir(), prefix="run-") as run_dir:
            factory, notes = _factory(console, Path(run_dir), millrace_only, millrace_command, settings)
            report = _measure(console, profile, only, factory, notes)
    except KeyboardInterrupt:
        console.print("interrupted; all brokers have been ended", style="yellow")
        sys.exit(INTERRUPTED)
    except (BrokerFailed, KafkaUnavailable) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(FAILED)
    print_table(report, console)
    if not no_files:
        _write_files(report, results, console)
    if report.failures:
        sys.exit(FAILED)


def _measure(
    console: Console, profile: Profile, only: tuple[str, ...], factory: BrokerFactory, notes: list[str]
) -> Report:
    on_one = [*shared_workloads(factory.distribution), *queue_workloads(factory.distribution)]
    shared = [each for each in on_one if not only or each.name in only]
    clustered = [each for each in cluster_workloads() if not only or each.name in only]
    secured = [each for each in secured_workloads(factory.distribution) if not only or each.name in only]
    solo = [each for each in solo_workloads() if not only or each.name in only]
    known = {each.name for each in [*shared, *clustered, *secured]} | {each.name for each in solo}
    unknown = set(only) - known
    if unknown:
        raise click.UsageError(f"no such workload here: {', '.join(sorted(unknown))}; see --list")
    if clustered and not _has_etcd():
        clustered = []
        notes.append("Measured without clusters: there is no etcd here for those of Millrace.")
        console.print(notes[-1], style="yellow", markup=False, highlight=False)
    load_before = machine.other_load()
    if load_before > BUSY_LOAD:
        notes.append(f"The machine was not idle before the run: load average {load_before:.2f}.")
        console.print(notes[-1], style="yellow", markup=False, highlight=False)
    # We ask before the run: a commit made meanwhile is not what was measured.
    commit, date, started = machine.commit(), datetime.now(UTC), time.monotonic()
    try:
        with Progress(console) as progress:
            runner = Runner(factory, profile, progress)
            runner.run(shared, solo, clustered, secured)
    finally:
        factory.close()
    return make_report(
        runner.outcome,
        date=date,
        commit=commit,
        profile=profile.name,
        is_partial=bool(only) or factory.distribution is None or not clustered,
        rounds=profile.rounds,
        duration_s=time.monotonic() - started,
        machine=machine.describe(),
        load_before=load_before,
        notes=notes,
    )


def _factory(
    console: Console, run_dir: Path, is_millrace_only: bool, command: str | None, settings: tuple[str, ...]
) -> tuple[BrokerFactory, list[str]]:
    """Brokers as the options want them, and notes on what differs from a usual run."""
    distribution, notes = _kafka(is_millrace_only, console)
    if command is not None:
        # We do not say which: a command has paths of this machine, and the commit says what was measured.
        notes.append("Millrace was run by another command than that of this environment")
    if settings:
        notes.append(f"Millrace ran with {', '.join(settings)}.")
    factory = BrokerFactory(run_dir, distribution, millrace_command=command, millrace_settings=settings)
    return factory, notes


def _kafka(is_millrace_only: bool, console: Console) -> tuple[KafkaDistribution | None, list[str]]:
    """Kafka if it is wanted and can be had, and a note if not."""
    if is_millrace_only:
        return None, ["Measured without Kafka, as asked: no ratios and no Java client."]
    try:
        return locate(), []
    except KafkaUnavailable as error:
        note = f"Measured without Kafka, which is not available here ({error}): no ratios and no Java client."
        console.print(note, style="yellow", markup=False, highlight=False)
        return None, [note]


def _has_etcd() -> bool:
    try:
        find_etcd()
    except EtcdMissing:
        return False
    return True


def _work_dir() -> Path:
    WORK.mkdir(parents=True, exist_ok=True)
    return WORK


def _write_files(report: Report, results: Path, console: Console) -> None:
    # We import this late: matplotlib takes a second, and no measurement needs it.
    from benchmarks.plot import write_plot

    results.mkdir(parents=True, exist_ok=True)
    stem = results / report.file_stem
    plot = stem.with_name(f"{stem.name}.png")
    write_plot(report, plot)
    write_json(report, stem.with_name(f"{stem.name}.json"))
    write_markdown(report, stem.with_name(f"{stem.name}.md"), plot)
    console.print(f"written: {stem}.json, .md, .png", markup=False, highlight=False, soft_wrap=True)


def _list_workloads(console: Console) -> None:
    java = KafkaDistribution(Path(), "java")
    workloads: list[SharedWorkload | SoloWorkload] = [*shared_workloads(java), *queue_workloads(java)]
    workloads += secured_workloads(java)
    for each in [*workloads, *cluster_workloads(), *solo_workloads()]:
        console.print(f"{each.name:<20} {each.summary}", markup=False, highlight=False, soft_wrap=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
