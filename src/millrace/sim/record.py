"""`python -m millrace.sim.record`: sums up what `--record` has kept, as the table of docs/simulation.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from millrace.sim.__main__ import RESULTS
from millrace.sim.runner import Finished, read_results

BEGIN: Final = "<!-- runs: written by python -m millrace.sim.record -->"
END: Final = "<!-- end of runs -->"
RUN_LONG: Final = ("C-seasons", "C-random", "random")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace.sim.record", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", default=[RESULTS], help="what was recorded")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    options = parser.parse_args(arguments)
    runs = [run for path in options.files for run in read_results(path)]
    text = table(runs)
    if options.write is None:
        sys.stdout.write(text)
        return 0
    page = options.write.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        parser.error(f"{options.write} has no place for the table: {BEGIN} … {END}")
    options.write.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
    return 0


def table(runs: Iterable[tuple[str, Finished]]) -> str:
    groups: dict[tuple[str, str, float], list[Finished]] = {}
    for commit, finished in runs:
        groups.setdefault((commit, _family(finished.scenario), finished.asked_s), []).append(finished)
    lines = [
        "| commit | scenario | seeds | runs | hours | of them quiet | times real time | failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (commit, family, asked_s), found in groups.items():
        failed = [
            f"{each.scenario + ' ' if each.scenario != family else ''}seed {each.seed}"
            for each in found
            if each.violations
        ]
        names = {each.scenario: None for each in found}
        what = family if family in names else f"{len(names)} {family}"
        lines.append(
            f"| {commit} | {what}, {_length(asked_s)} each | {_ranges(each.seed for each in found)} "
            f"| {_figures(found)} | {', '.join(failed) or 'none'} |"
        )
    everything = [finished for found in groups.values() for finished in found]
    failed_count = sum(bool(each.violations) for each in everything)
    lines.append(f"| all | | | {_figures(everything)} | {failed_count or 'none'} |")
    return "\n".join(lines) + "\n"


def _family(scenario: str) -> str:
    """A row of its own for what runs long, one for all others of a kind."""
    if scenario in RUN_LONG:
        return scenario
    return "of several brokers" if scenario.startswith("C-") else "of one broker"


def _figures(found: Sequence[Finished]) -> str:
    hours = sum(each.simulated_s for each in found) / 3600
    quiet_hours = sum(each.quiet_s for each in found) / 3600
    speed = hours * 3600 / max(sum(each.cpu_s for each in found), 0.001)
    return f"{len(found):,} | {hours:,.1f} | {quiet_hours:,.1f} | {speed:,.0f}"


def _length(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 360 else f"{seconds:g} s"


def _ranges(seeds: Iterable[int]) -> str:
    """As 1-7, 9."""
    ranges: list[list[int]] = []
    for seed in sorted({*seeds}):
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


if __name__ == "__main__":
    sys.exit(main())
