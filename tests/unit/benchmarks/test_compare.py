"""Two commits in turns: what is compared, and when a line counts as dearer."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from benchmarks.brokers import BrokerFactory, System
from benchmarks.compare import Change, changes, counted, judged_workloads, judgement, write_files
from benchmarks.metrics import Metric, Sample
from benchmarks.profiles import COUNTED, SMOKE
from benchmarks.summary import Better

CPU = Metric(key="requests.cpu", title="requests: CPU", unit="µs/req", better=Better.LOWER)
RATE = Metric(key="requests.rate", title="requests", unit="1/s")
CLIENT = Metric(key="requests.generator", title="client", unit="%", is_compared=False)


def samples(metric: Metric, before: list[float], now: list[float]) -> list[Sample]:
    return [
        *(Sample(metric.key, System.BEFORE, number, value) for number, value in enumerate(before, 1)),
        *(Sample(metric.key, System.MILLRACE, number, value) for number, value in enumerate(now, 1)),
    ]


def test_medians_and_the_ratio_of_each_round_are_told() -> None:
    found = changes([CPU], samples(CPU, [10.0, 20.0, 12.0], [11.0, 10.0, 12.0]))

    assert found == [
        Change(
            key="requests.cpu",
            title="requests: CPU",
            unit="µs/req",
            before_rounds=(10.0, 20.0, 12.0),
            now_rounds=(11.0, 10.0, 12.0),
        )
    ]
    (change,) = found
    assert (change.before, change.now) == (12.0, 11.0)
    assert change.round_ratios == (1.1, 0.5, 1.0)
    assert change.least_ratio == 1.0


def test_what_one_commit_lacks_or_the_client_tells_is_left_out() -> None:
    lone = [Sample(RATE.key, System.MILLRACE, 1, 5.0)]
    assert changes([RATE, CLIENT], [*lone, *samples(CLIENT, [1.0], [1.0])]) == []


def test_only_cpu_time_is_judged_and_three_in_a_hundred_are_allowed() -> None:
    rows = changes([RATE, CPU], [*samples(RATE, [100.0], [50.0]), *samples(CPU, [100.0], [103.0])])
    assert judgement(rows) == "1 of 1 lines of cost at most 1.03x of before, by the least round"

    rows = changes([CPU], samples(CPU, [100.0], [103.1]))
    assert judgement(rows) == "0 of 1 lines of cost at most 1.03x of before, by the least round"


def test_workloads_that_tell_no_cpu_time_of_a_broker_are_left_out_unless_named() -> None:
    for profile in (SMOKE, COUNTED):
        shared, clustered, solo = judged_workloads(None, profile, ())
        names = {each.name for each in [*shared, *clustered]} | {each.name for each in solo}
        assert {"requests", "group-commit", "cluster-produce", "group-idle"} <= names
        assert not {"spark-read", "failover", "startup"} & names

    _, _, solo = judged_workloads(None, SMOKE, ("failover",))
    assert [each.name for each in solo] == ["failover"]
    with pytest.raises(click.UsageError, match="no such workload here: tea"):
        judged_workloads(None, SMOKE, ("tea",))


def test_the_commit_of_before_takes_the_place_of_kafka(tmp_path: Path) -> None:
    assert BrokerFactory(tmp_path, None, before_command="old serve").systems == (
        System.BEFORE,
        System.MILLRACE,
    )
    assert BrokerFactory(tmp_path, None).systems == (System.MILLRACE,)


def test_the_files_carry_both_commits_and_the_verdicts(tmp_path: Path) -> None:
    found = changes([CPU, RATE], [*samples(CPU, [100.0], [110.0]), *samples(RATE, [5.0], [6.0])])
    facts: dict[str, object] = {"date": "d", "commit": "new", "before": "old", "profile": "smoke"}
    facts |= {"rounds": 1, "minutes": 2, "load_before": 0.1}

    write_files(tmp_path / "run", facts, found)

    stored = json.loads((tmp_path / "run.json").read_text())
    assert (stored["commit"], stored["before"]) == ("new", "old")
    assert stored["metrics"][0]["ratio"] == pytest.approx(1.1)
    text = (tmp_path / "run.md").read_text()
    assert "| requests: CPU | µs/req | 100 | 110 | 1.100x | 1.100x | 1.10-1.10 | FAIL |" in text
    assert "| requests | 1/s | 5 | 6 | 1.200x | 1.200x | 1.20-1.20 |  |" in text
    assert (tmp_path / "run.png").stat().st_size > 0


def test_where_instructions_are_counted_only_they_are_told_in_units_of_their_own() -> None:
    found = changes([RATE, CPU], [*samples(RATE, [100.0], [50.0]), *samples(CPU, [66.9], [67.0])])
    (line,) = counted(found)
    assert (line.title, line.unit) == ("requests: instructions", "10^3 instructions/req")
    assert line.is_judged
