"""Many runs in several processes come to the same as one after the other, and what they came to is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.sim import __main__ as program
from millrace.sim.runner import Finished, Job, Results, play_all, read_results

SECONDS = 2.0


def never() -> bool:
    return False


def test_runs_in_several_processes_have_the_same_histories() -> None:
    jobs = [Job(scenario="F19-kill", seed=seed, seconds=SECONDS) for seed in (1, 2, 3)]
    alone = {each.seed: each.digest for each in play_all(jobs, processes=1, is_over=never)}
    together = {each.seed: each.digest for each in play_all(jobs, processes=2, is_over=never)}
    assert alone == together
    assert len(set(alone.values())) == len(jobs)


def test_no_run_begins_when_the_time_is_over() -> None:
    jobs = [Job(scenario="F19-kill", seed=1, seconds=SECONDS)]
    assert list(play_all(jobs, processes=1, is_over=lambda: True)) == []
    assert list(play_all(jobs, processes=2, is_over=lambda: True)) == []


def finished(seed: int, *, violations: tuple[str, ...] = ()) -> Finished:
    return Finished(
        scenario="C-seasons",
        seed=seed,
        asked_s=86_400.0,
        simulated_s=90_000.0,
        quiet_s=88_200.0,
        events=10,
        callbacks=100,
        acked=5,
        wall_s=40.0,
        cpu_s=30.0,
        digest="d",
        violations=list(violations),
    )


def test_results_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "sim" / "runs.jsonl"
    results = Results(path)
    runs = [finished(1), finished(2), finished(4, violations=("lost: something",))]
    for each in runs:
        results.add(each)
    assert [each for _, each in read_results(path)] == runs


def test_a_failing_seed_prints_how_to_replay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "play_all", lambda *_, **__: [finished(7, violations=("lost: x",))])
    path = tmp_path / "runs.jsonl"
    status = program.main(["--seeds", "7", "--scenario", "C-seasons", "--hours", "24", "--record", str(path)])
    assert status == 1
    said = capsys.readouterr().out
    assert "again: python -m millrace.sim --seeds 7 --scenario C-seasons --hours 24 --log" in said
    assert len(read_results(path)) == 1
