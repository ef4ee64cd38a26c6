"""What `millrace pipeline archive`, `replay` and `backfill` print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from millrace.cli.output import Progress, log_line, print_json, print_table, progress
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.pipeline.lake.archive import Step
    from millrace.pipeline.lake.backfill import Coverage
    from millrace.pipeline.lake.maintenance import Done
    from millrace.pipeline.lake.replay import ReplayPlan
    from millrace.pipeline.lake.verify import Comparison


class ArchiveReporter:
    """Tells of commits: a bar or occasional lines for a single pass, a line for each commit otherwise."""

    def __init__(self, bars: ExitStack | None) -> None:
        self._bars = bars
        self._bar: Progress | None = None
        self._offsets: dict[str, int] = {}
        self._commits: dict[str, int] = {}

    def planned(self, topic: str, offsets: int) -> None:
        self._offsets.setdefault(topic, 0)
        self._commits.setdefault(topic, 0)
        if self._bars is not None and offsets:
            log_line(f"{topic}: {offsets:,} offsets to archive")
            self._bars.close()
            self._bar = self._bars.enter_context(progress(f"archive {topic}", total=offsets))

    def stepped(self, topic: str, step: Step) -> None:
        self._offsets[topic] += step.offsets
        self._commits[topic] += 1
        for partition, (start, end) in step.lost.items():
            log_line(f"{topic}-{partition}: offsets {start} to {end - 1} were gone before they were archived")
        note = f"{topic}: {step.offsets:,} offsets committed, {step.remaining:,} left"
        if self._bar is not None:
            self._bar.advance(step.offsets, note=note)
        else:
            log_line(note)

    def maintained(self, topic: str, done: Done) -> None:
        log_line(f"{topic}: {done.describe()}")

    def failed(self, topic: str, reason: str) -> None:
        log_line(f"{topic}: will be tried again: {reason}")

    def summarise(self) -> None:
        for topic, offsets in self._offsets.items():
            log_line(f"{topic}: {offsets:,} offsets archived in {self._commits[topic]:,} commits")


@contextmanager
def archive_reporter(*, is_once: bool) -> Iterator[ArchiveReporter]:
    with ExitStack() as bars:
        yield ArchiveReporter(bars if is_once else None)


class VerificationFailed(MillraceError):
    """The topic does not hold what the archive holds."""


def announce(plan: ReplayPlan, into: str) -> None:
    if plan.is_created:
        log_line(f"created topic {into}; it keeps records for ever unless --config said otherwise")
    already = plan.records - plan.records_left
    if already:
        log_line(f"{already:,} of {plan.records:,} records were sent before; going on behind them")


def print_replay_plan(plan: ReplayPlan, *, as_json: bool) -> None:
    rows = [
        (
            partition,
            each.first,
            each.last,
            each.records,
            plan.left[partition].records if partition in plan.left else 0,
        )
        for partition, each in sorted(plan.partitions.items())
    ]
    headings = ("PARTITION", "FIRST", "LAST", "RECORDS", "TO SEND")
    if as_json:
        for row in rows:
            print_json(dict(zip(("partition", "first", "last", "records", "to_send"), row, strict=True)))
    else:
        print_table(headings, rows, right=headings)


def report(comparisons: list[Comparison], into: str, *, as_json: bool) -> None:
    for each in comparisons if as_json else ():
        print_json(
            {
                "partition": each.partition,
                "archived": each.wanted.records,
                "found": each.found.records,
                "archived_checksum": each.wanted.hexadecimal(),
                "found_checksum": each.found.hexadecimal(),
                "same": each.is_same,
            }
        )
    if not as_json:
        print_table(
            ("PARTITION", "ARCHIVED", "FOUND", "ARCHIVED CHECKSUM", "FOUND CHECKSUM", "RESULT"),
            [
                (
                    each.partition,
                    each.wanted.records,
                    each.found.records,
                    each.wanted.hexadecimal(),
                    each.found.hexadecimal(),
                    "OK" if each.is_same else "FAIL",
                )
                for each in comparisons
            ],
            right=("PARTITION", "ARCHIVED", "FOUND"),
        )
    wrong = [str(each.partition) for each in comparisons if not each.is_same]
    if wrong:
        raise VerificationFailed(
            f"{into} differs from the archive in partition {', '.join(wrong)}: did somebody else write to it,"
            " or does it set timestamps itself (message.timestamp.type=LogAppendTime)?"
        )


def print_rows(rows: DataFrame, *, as_json: bool) -> None:
    found = rows.limit(1000).collect()
    if as_json:
        for row in found:
            print_json({name: _readable(value) for name, value in row.asDict(recursive=True).items()})
    else:
        print_table(rows.columns, [[_readable(value) for value in row] for row in found])


def _readable(value: Any) -> Any:
    match value:
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case datetime():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def print_coverage(coverage: Coverage, rows: DataFrame, *, as_json: bool) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    counted = rows.groupBy("partition").agg(F.count(F.lit(1)), F.countDistinct("offset")).collect()
    counts = {int(row[0]): (int(row[1]), int(row[2])) for row in counted}
    numbers = sorted({**coverage.archived, **coverage.live, **counts})
    names = ("partition", "archive_from", "archive_to", "live_from", "live_to", "records")
    table = []
    for number in numbers:
        records, distinct = counts.get(number, (0, 0))
        assert records == distinct, f"partition {number} has offsets twice"
        archived, live = coverage.archived.get(number, (None, None)), coverage.live.get(number, (None, None))
        table.append((number, *archived, *live, records))
    if as_json:
        for row in table:
            print_json(dict(zip(names, row, strict=True)))
    else:
        headings = [name.replace("_", " ").upper() for name in names]
        print_table(headings, table, right=headings)
