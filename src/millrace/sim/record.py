"""`python -m millrace.sim.record`: sums up what `--record` has kept, as the table of docs/simulation.md.

The page outlives the files: rows of runs that the given files do not hold stay, with the precision that the
page gives them. No run is counted twice: where the page cannot say whether it has a run already, the run is
not added."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.sim.__main__ import RESULTS
from millrace.sim.runner import Finished, read_results

BEGIN: Final = "<!-- runs: written by python -m millrace.sim.record -->"
END: Final = "<!-- end of runs -->"
RUN_LONG: Final = ("C-seasons", "C-random", "random")
HEADER: Final = (
    "| commit | scenario | seeds | runs | hours | of them quiet | times real time | failed |",
    "|---|---|---|---|---|---|---|---|",
)
SUM: Final = "all"
NONE: Final = "none"
ROW: Final = re.compile(
    r"\| (?P<commit>\S+) \| (?:(?P<kinds>\d+) (?=of ))?(?P<scenario>[^|]+) \| (?P<seeds>[\d, -]+) "
    r"\| (?P<runs>[\d,]+) \| (?P<hours>[\d,.]+) \| (?P<quiet>[\d,.]+) \| (?P<speed>[\d,]+) "
    r"\| (?P<failed>[^|]+) \|"
)


class NoRow(Exception):
    """A line between the marks is neither a row in the form of this module nor the head of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The runs of a commit and a scenario, or of all scenarios of a kind that ran equally long."""

    commit: str
    scenario: str
    kinds: int | None
    """How many scenarios the row covers at least, if it covers several."""
    seeds: frozenset[int]
    runs: int
    hours: float
    quiet_hours: float
    speed: float
    failed: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        return self.commit, self.scenario

    @property
    def cpu_hours(self) -> float:
        # A page rounds a speed to 0 only if it is half of real time at the most.
        return self.hours / (self.speed or 0.5)

    def line(self) -> str:
        kinds = "" if self.kinds is None else f"{self.kinds} "
        return (
            f"| {self.commit} | {kinds}{self.scenario} | {_ranges(self.seeds)} "
            f"| {_figures(self)} | {', '.join(self.failed) or NONE} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace.sim.record", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", default=[RESULTS], help="what was recorded")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table into this page, beside the runs that it has"
    )
    options = parser.parse_args(arguments)
    runs = [run for path in options.files for run in read_results(path)]
    if options.write is None:
        sys.stdout.write(table(runs))
        return 0
    page = options.write.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        parser.error(f"{options.write} has no place for the table: {BEGIN} … {END}")
    try:
        text = table(runs, rows_of(old))
    except NoRow as error:
        parser.error(f"{options.write}: {error}")
    options.write.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
    return 0


def table(runs: Iterable[tuple[str, Finished]], known: Iterable[Row] = ()) -> str:
    """The table of the runs, and of the rows that are known already."""
    groups: dict[tuple[str, str], list[Finished]] = {}
    for commit, finished in runs:
        groups.setdefault((commit, _scenario(finished)), []).append(finished)
    rows: list[Row] = []
    for row in known:
        found = groups.pop(row.key, None)
        rows.append(row if found is None else _merged(row, found))
    rows += [_row(commit, scenario, found) for (commit, scenario), found in groups.items()]
    lines = [row.line() for row in rows]
    # The sum is made of the written figures, so that it is the same when the page is read again.
    written = [_parsed(line) for line in lines]
    failed_count = sum(len(row.failed) for row in written)
    everything = f"| {SUM} | | | {_figures(*written)} | {failed_count or NONE} |"
    return "\n".join([*HEADER, *lines, everything]) + "\n"


def rows_of(text: str) -> list[Row]:
    """The rows of a table as they stand in a page, without the sum."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [_parsed(line) for line in lines if line not in HEADER and not line.startswith(f"| {SUM} |")]


def _parsed(line: str) -> Row:
    match = ROW.fullmatch(line)
    if match is None:
        raise NoRow(f"no row of recorded runs, so that it would be lost: {line}")
    return Row(
        commit=match["commit"],
        scenario=match["scenario"],
        kinds=None if match["kinds"] is None else int(match["kinds"]),
        seeds=_seeds(match["seeds"]),
        runs=int(_number(match["runs"])),
        hours=_number(match["hours"]),
        quiet_hours=_number(match["quiet"]),
        speed=_number(match["speed"]),
        failed=() if match["failed"] == NONE else tuple(match["failed"].split(", ")),
    )


def _row(commit: str, scenario: str, found: Sequence[Finished]) -> Row:
    names = {each.scenario for each in found}
    is_of_several = not names <= {*RUN_LONG}
    simulated_s = sum(each.simulated_s for each in found)
    return Row(
        commit=commit,
        scenario=scenario,
        kinds=len(names) if is_of_several else None,
        seeds=frozenset(each.seed for each in found),
        runs=len(found),
        hours=simulated_s / 3600,
        quiet_hours=sum(each.quiet_s for each in found) / 3600,
        speed=simulated_s / max(sum(each.cpu_s for each in found), 0.001),
        failed=tuple(
            f"{each.scenario + ' ' if is_of_several else ''}seed {each.seed}"
            for each in found
            if each.violations
        ),
    )


def _merged(row: Row, found: Sequence[Finished]) -> Row:
    """A row of the page with the runs of a file, some of which it may hold already."""
    whole = _row(row.commit, row.scenario, found)
    if whole.seeds >= row.seeds and whole.runs >= row.runs:
        return whole
    # A row does not tell what each of its seeds came to, so those seeds stay as they are.
    others = [each for each in found if each.seed not in row.seeds]
    if not others:
        return row
    added = _row(row.commit, row.scenario, others)
    return Row(
        commit=row.commit,
        scenario=row.scenario,
        kinds=None if row.kinds is None else max(row.kinds, added.kinds or 0),
        seeds=row.seeds | added.seeds,
        runs=row.runs + added.runs,
        hours=row.hours + added.hours,
        quiet_hours=row.quiet_hours + added.quiet_hours,
        speed=_speed(row, added),
        failed=row.failed + added.failed,
    )


def _scenario(finished: Finished) -> str:
    """The row of a run: scenarios that run long have one of their own, all others share one for their
    kind."""
    family = finished.scenario
    if family not in RUN_LONG:
        family = "of several brokers" if family.startswith("C-") else "of one broker"
    return f"{family}, {_length(finished.asked_s)} each"


def _figures(*rows: Row) -> str:
    runs = sum(row.runs for row in rows)
    hours = sum(row.hours for row in rows)
    quiet_hours = sum(row.quiet_hours for row in rows)
    return f"{runs:,} | {hours:,.1f} | {quiet_hours:,.1f} | {_speed(*rows):,.0f}"


def _speed(*rows: Row) -> float:
    """The speed of rows together; of a single row what it says itself, since its hours may be rounded to
    0."""
    if len(rows) == 1:
        return rows[0].speed
    cpu_hours = sum(row.cpu_hours for row in rows)
    return sum(row.hours for row in rows) / cpu_hours if cpu_hours else 0.0


def _length(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 360 else f"{seconds:g} s"


def _ranges(seeds: Iterable[int]) -> str:
    """Seeds in short, as in `1-7, 9`."""
    ranges: list[list[int]] = []
    for seed in sorted({*seeds}):
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _seeds(ranges: str) -> frozenset[int]:
    """What `_ranges` has written."""
    seeds: set[int] = set()
    for part in ranges.split(", "):
        first, dash, last = part.partition("-")
        seeds.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(seeds)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


if __name__ == "__main__":
    sys.exit(main())
