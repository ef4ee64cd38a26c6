"""`make check` runs every unit test, and fails if one step does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.run_checks import ROOT, UNIT_TESTS, Done, Step, all_steps, parts_of, run

FAILING = Step(
    "failing", (sys.executable, "-c", "print('first'); print('last'); raise SystemExit(3)"), "mend it"
)
PASSING = Step("passing", (sys.executable, "-c", "print('hidden'); print('== all is well ==')"))


def ends_of(*steps: Step, slots: int) -> tuple[dict[str, int], str]:
    said: list[str] = []
    done: list[Done] = list(run(steps, slots, said.append))
    return {each.step.name: each.code for each in done}, "\n".join(said)


@pytest.mark.parametrize("slots", [1, 2])
def test_every_step_runs_though_another_has_failed(slots: int) -> None:
    codes, _ = ends_of(FAILING, PASSING, slots=slots)
    assert codes == {"failing": 3, "passing": 0}


def test_a_failure_is_shown_in_one_piece_and_a_success_in_one_line() -> None:
    _, said = ends_of(FAILING, PASSING, slots=2)
    assert "first\nlast\nmend it\n" in said
    assert "passing: all is well" in said
    assert "hidden" not in said


def write(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#" * size_bytes)


def test_parts_are_of_about_the_same_size_and_the_larger_ones_come_first(tmp_path: Path) -> None:
    small, middle, large = (tmp_path / name for name in ("small", "middle", "large"))
    write(small / "test_a.py", 10)
    write(middle / "inner" / "test_b.py", 20)
    write(large / "test_c.py", 40)
    write(tmp_path / "test_alone.py", 5)
    write(tmp_path / "no_tests" / "support.py", 100)
    alone = tmp_path / "test_alone.py"
    assert parts_of(tmp_path, 1) == [[large, middle, small, alone]]
    assert parts_of(tmp_path, 2) == [[large], [middle, small, alone]]
    assert parts_of(tmp_path, 9) == [[large], [middle], [small], [alone]]


@pytest.mark.parametrize("parts_count", [1, 6, 100])
def test_every_unit_test_is_in_exactly_one_step(parts_count: int) -> None:
    words = [word for step in all_steps(parts_count) for word in step.command if word.startswith("tests/")]
    found = [test for word in words for test in (ROOT / word).rglob("test_*.py")]
    assert sorted(found) == sorted(UNIT_TESTS.rglob("test_*.py"))
