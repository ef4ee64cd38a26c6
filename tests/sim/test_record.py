"""The table of recorded runs keeps what earlier files held, and counts nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from millrace.sim import record
from millrace.sim.runner import Finished

OLD = "| 0dd06eb | C-seasons, 24 h each | 1-2, 4 | 3 | 75.0 | 73.5 | 3,000 | seed 4 |"
TINY = "| 0dd06eb | random, 43.2 s each | 51 | 1 | 0.0 | 0.0 | 334 | none |"
SEVERAL = (
    "| 0dd06eb | 20 of several brokers, 60 s each | 41-43 | 60 | 2.2 | 0.0 | 51 | C-a seed 42, C-b seed 43 |"
)


def finished(seed: int, *, scenario: str = "C-seasons", failed: bool = False) -> Finished:
    is_long = scenario == "C-seasons"
    return Finished(
        scenario=scenario,
        seed=seed,
        asked_s=86_400.0 if is_long else 60.0,
        simulated_s=90_000.0 if is_long else 72.0,
        quiet_s=88_200.0 if is_long else 0.0,
        events=10,
        callbacks=100,
        acked=5,
        wall_s=40.0,
        cpu_s=30.0 if is_long else 1.44,
        digest="d",
        violations=["lost: something"] if failed else [],
    )


class Page:
    """With a table of runs, as docs/simulation.md has one."""

    def __init__(self, folder: Path, *rows: str) -> None:
        self.path = folder / "page.md"
        self._files = folder / "runs.jsonl"
        table = "\n".join([*record.HEADER, *rows, "| all | | | 9 | 9.9 | 9.9 | 9 | 9 |"])
        self.path.write_text(
            f"before\n\n{record.BEGIN}\n\n{table}\n\n{record.END}\n\nafter\n", encoding="utf-8"
        )

    def write(self, runs: Iterable[Finished], *, commit: str = "0dd06eb") -> list[str]:
        """The rows that the page has then, the sum last."""
        lines = [json.dumps({"commit": commit, **asdict(each)}) for each in runs]
        self._files.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        assert record.main([str(self._files), "--write", str(self.path)]) == 0
        text = self.path.read_text(encoding="utf-8")
        inside = text.partition(record.BEGIN)[2].partition(record.END)[0]
        return inside.strip().splitlines()[len(record.HEADER) :]


def test_runs_are_summed_up() -> None:
    runs = [("abc", each) for each in (finished(1), finished(2), finished(4, failed=True))]
    lines = record.table(runs).splitlines()
    assert lines[2] == "| abc | C-seasons, 24 h each | 1-2, 4 | 3 | 75.0 | 73.5 | 3,000 | seed 4 |"
    assert lines[-1] == "| all | | | 3 | 75.0 | 73.5 | 3,000 | 1 |"


def test_scenarios_of_a_kind_share_a_row() -> None:
    runs = [
        ("abc", finished(seed, scenario=name, failed=seed == 2)) for name in ("C-a", "C-b") for seed in (1, 2)
    ]
    lines = record.table(runs).splitlines()
    assert lines[2] == (
        "| abc | 2 of several brokers, 60 s each | 1-2 | 4 | 0.1 | 0.0 | 50 | C-a seed 2, C-b seed 2 |"
    )


def test_the_table_is_put_into_a_page(tmp_path: Path) -> None:
    page = Page(tmp_path)
    page.write([finished(1)])
    text = page.path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "C-seasons, 24 h each" in text


def test_rows_of_other_runs_stay_and_count_in_the_sum(tmp_path: Path) -> None:
    page = Page(tmp_path, OLD, TINY, SEVERAL)
    *rows, everything = page.write([finished(1)], commit="fffffff")
    assert rows == [
        OLD,
        TINY,
        SEVERAL,
        "| fffffff | C-seasons, 24 h each | 1 | 1 | 25.0 | 24.5 | 3,000 | none |",
    ]
    # 102.2 hours in 100 / 3,000 + 2.2 / 51 hours of CPU time.
    assert everything == "| all | | | 65 | 102.2 | 98.0 | 1,336 | 3 |"


def test_a_row_of_which_the_file_has_every_seed_is_replaced(tmp_path: Path) -> None:
    page = Page(tmp_path, OLD, TINY)
    rows = page.write([finished(seed) for seed in (1, 2, 3, 4)])
    assert rows[0] == "| 0dd06eb | C-seasons, 24 h each | 1-4 | 4 | 100.0 | 98.0 | 3,000 | none |"
    assert rows[1] == TINY


def test_other_seeds_of_a_row_are_added_to_it(tmp_path: Path) -> None:
    page = Page(tmp_path, OLD.replace("3,000", "6,000"))
    rows = page.write([finished(5, failed=True), finished(6)])
    # 125 hours in 75 / 6,000 + 50 / 3,000 hours of CPU time.
    assert rows[0] == (
        "| 0dd06eb | C-seasons, 24 h each | 1-2, 4-6 | 5 | 125.0 | 122.5 | 4,286 | seed 4, seed 5 |"
    )


def test_of_seeds_that_are_in_both_only_the_others_are_added(tmp_path: Path) -> None:
    page = Page(tmp_path, OLD)
    rows = page.write([finished(4, failed=True), finished(5)])
    assert rows[0] == "| 0dd06eb | C-seasons, 24 h each | 1-2, 4-5 | 4 | 100.0 | 98.0 | 3,000 | seed 4 |"


@pytest.mark.parametrize("seeds", [(1, 2, 3, 4), (5, 6), (4, 5), (1,), (2, 2, 3)])
def test_the_same_file_twice_counts_once(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    page = Page(tmp_path, OLD, SEVERAL)
    runs = [finished(seed) for seed in seeds] + [finished(seed, scenario="C-admin") for seed in seeds]
    once = page.write(runs)
    assert page.write(runs) == once


def test_a_part_of_the_scenarios_of_a_row_adds_nothing(tmp_path: Path) -> None:
    """The row does not name them: they may be among those that it has."""
    page = Page(tmp_path, SEVERAL)
    rows = page.write([finished(seed, scenario="C-admin") for seed in (41, 42, 43)])
    assert rows[0] == SEVERAL


def test_more_scenarios_than_a_row_has_replace_it(tmp_path: Path) -> None:
    page = Page(tmp_path, SEVERAL)
    runs = [finished(seed, scenario=f"C-{name}") for seed in (41, 42, 43) for name in range(25)]
    rows = page.write(runs)
    assert rows[:-1] == [
        "| 0dd06eb | 25 of several brokers, 60 s each | 41-43 | 75 | 1.5 | 0.0 | 50 | none |"
    ]


def test_a_line_that_is_no_row_is_not_thrown_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page(tmp_path, OLD, "| 0dd06eb | by hand |")
    before = page.path.read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        page.write([finished(1)])
    assert "| 0dd06eb | by hand |" in capsys.readouterr().err
    assert page.path.read_text(encoding="utf-8") == before


def test_the_table_of_the_documentation_can_be_read_again() -> None:
    page = Path(__file__).parents[2] / "docs" / "simulation.md"
    inside = page.read_text(encoding="utf-8").partition(record.BEGIN)[2].partition(record.END)[0]
    rows = [line for line in inside.strip().splitlines() if not line.startswith("| all ")]
    assert record.table([], record.rows_of(inside)).splitlines()[:-1] == rows
