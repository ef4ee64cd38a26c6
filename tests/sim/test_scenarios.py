"""Every scenario from a few seeds: a broker that is killed, starved, cut off or told the wrong time keeps its
promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.sim.playing import Named
from millrace.sim.run import run_scenario
from millrace.sim.scenarios import BY_NAME, SCENARIOS

SECONDS = 15.0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_is_violated(scenario: Named) -> None:
    outcome = run_scenario(1, scenario.play, scenario.plan, seconds=SECONDS)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]
    assert outcome.acked > 0, "nothing was acknowledged: the run shows nothing"


@pytest.mark.parametrize("seed", range(2, 6))
def test_random_faults(seed: int) -> None:
    scenario = BY_NAME["random"]
    outcome = run_scenario(seed, scenario.play, scenario.plan, seconds=60.0)
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:10]]


def test_the_same_seed_gives_the_same_history_in_every_process() -> None:
    """Strings hash differently in each process: whoever iterates over a set of them is found here."""
    command = [
        sys.executable,
        "-m",
        "millrace.sim",
        "--seeds",
        "7",
        "--scenario",
        "random",
        "--hours",
        "0.01",
    ]
    lines = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.splitlines()[0]
        for hash_seed in ("1", "2")
    ]
    digests = [line.split()[-1] for line in lines]
    assert digests[0] == digests[1]


def test_another_seed_gives_another_history() -> None:
    scenario = BY_NAME["F25-no-fault"]
    first, second = (run_scenario(seed, scenario.play, scenario.plan, seconds=5.0).digest for seed in (1, 2))
    assert first != second


def test_every_fault_has_a_scenario() -> None:
    """The page says which scenarios show which fault: each fault is there, and each name exists."""
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    table = page.partition("| fault | scenarios |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| (F\d+) \| (.+) \|$", table, re.MULTILINE))
    assert list(rows) == [f"F{number}" for number in range(1, 34)]
    for code, named in rows.items():
        if not named.startswith(("does not apply", "every scenario")):
            unknown = [name for name in named.split(", ") if name not in BY_NAME]
            assert not unknown, (code, unknown)
