"""Capacity plans: estimates on paper come out the same, and figures are those of the recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli.main import CLI
from millrace.core import units
from millrace.pipeline.capacity import measured
from millrace.pipeline.capacity.estimate import Broker, Load, Policy, make_plan
from millrace.pipeline.capacity.examples import EXAMPLES, Example
from millrace.pipeline.errors import PipelineError

RESULTS = Path(__file__).resolve().parents[4] / "benchmarks" / "results"
BROKER = Broker(write_s_per_gb=4, read_s_per_gb=1, partition_bytes_per_s=200e6)


def number(text: str) -> float:
    return units.parse_bytes_per_s(text.replace(",", "").replace(" ", ""))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_estimate_on_paper_comes_out_the_same_under_its_assumptions(example: Example) -> None:
    plan = make_plan(example.load, example.paper_broker, example.paper_policy)
    for estimate in example.estimates:
        # Estimates round: 600 TB for 604.8.
        assert number(estimate.of_plan(plan)) == pytest.approx(number(estimate.on_paper), rel=0.01), estimate


def test_the_largest_need_decides_and_spare_brokers_come_on_top() -> None:
    load = Load(messages_per_s=1e5, message_bytes=1_000, retention_s=86_400, replication=2)
    plan = make_plan(load, BROKER, Policy(spare_brokers=2))
    assert plan.brokers == max(need.count for need in plan.broker_needs) + 2
    assert plan.partitions_even % plan.brokers == 0
    assert plan.disk_bytes == pytest.approx(1e5 * 1_012 * 86_400 * 2)


def test_the_peak_drives_rates_but_not_the_disk() -> None:
    calm = Load(messages_per_s=1e5, message_bytes=1_000, retention_s=86_400)
    busy = Load(messages_per_s=1e5, message_bytes=1_000, retention_s=86_400, peak=3)
    assert make_plan(busy, BROKER).write_bytes_per_s == 3 * make_plan(calm, BROKER).write_bytes_per_s
    assert make_plan(busy, BROKER).disk_bytes == make_plan(calm, BROKER).disk_bytes


def test_more_consumer_groups_cost_network_and_processor() -> None:
    few = make_plan(Load(messages_per_s=1e5, message_bytes=1_000, retention_s=3_600), BROKER)
    many = make_plan(
        Load(messages_per_s=1e5, message_bytes=1_000, retention_s=3_600, consumer_groups=20), BROKER
    )
    assert many.network_out_per_broker * many.brokers > 5 * few.network_out_per_broker * few.brokers
    assert many.network_in_per_broker * many.brokers == few.network_in_per_broker * few.brokers
    assert many.brokers > few.brokers


@pytest.mark.parametrize(
    "load",
    [
        Load(messages_per_s=0, message_bytes=1, retention_s=1),
        Load(messages_per_s=1, message_bytes=1, retention_s=1, replication=0),
        Load(messages_per_s=1, message_bytes=float("inf"), retention_s=1),
    ],
)
def test_a_senseless_load_is_refused_by_name(load: Load) -> None:
    with pytest.raises(PipelineError, match="must be"):
        make_plan(load, BROKER)


def test_the_shipped_figures_are_those_of_the_recorded_run() -> None:
    recorded = measured.load_figures(RESULTS / measured.SHIPPED_RESULT)
    for size in measured.SIZES:
        assert measured.SHIPPED.write_s_per_gb[size] == pytest.approx(
            recorded.write_s_per_gb[size], rel=0.001
        )
        assert measured.SHIPPED.read_s_per_gb[size] == pytest.approx(recorded.read_s_per_gb[size], rel=0.001)
        assert measured.SHIPPED.partition_mb_per_s[size] == pytest.approx(
            recorded.partition_mb_per_s[size], rel=0.001
        )


def test_figures_between_and_beyond_the_measured_sizes_follow_one_line() -> None:
    figures = measured.SHIPPED
    assert figures.write_at(100) == pytest.approx(5.308)
    assert figures.write_at(1_000) == pytest.approx(3.733)
    assert figures.write_at(1_000) > figures.write_at(10_000) > 0
    assert figures.write_at(10) > figures.write_at(100)
    assert figures.partition_bytes_per_s_at(1_000) == pytest.approx(263.8e6)


def test_a_result_without_the_needed_figures_says_which(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"metrics": []}')
    with pytest.raises(PipelineError, match=r"librdkafka-produce\.100\.16384\.cpu"):
        measured.load_figures(tmp_path)
    with pytest.raises(PipelineError, match="no result"):
        measured.load_figures(tmp_path / "..")
    (tmp_path / "run.json").write_text("[")
    with pytest.raises(PipelineError, match="not JSON"):
        measured.load_figures(tmp_path / "run.json")


@pytest.mark.parametrize(
    "text,value",
    [("1M", 1e6), ("2.5k", 2_500), ("1_000", 1_000), ("250000", 250_000), ("1 billion", 1e9)],
)
def test_counts_are_read_as_people_write_them(text: str, value: float) -> None:
    assert units.parse_count(text) == value


def test_sizes_rates_and_durations_are_read_with_their_units() -> None:
    assert units.parse_bytes("4TB") == 4e12
    assert units.parse_bytes("1KiB") == 1024
    assert units.parse_bytes_per_s("10Gbit") == 1.25e9
    assert units.parse_bytes_per_s("50MB/s") == 50e6
    assert units.parse_seconds("7d") == 604_800
    with pytest.raises(ValueError, match="'7 fortnights' is not a duration"):
        units.parse_seconds("7 fortnights")


@pytest.mark.parametrize(
    "size,text", [(0, "0 B"), (999, "999 B"), (999.7, "1 kB"), (1.81e15, "1.81 PB"), (5e20, "500 EB")]
)
def test_sizes_are_written_with_three_digits(size: float, text: str) -> None:
    assert units.bytes_text(size) == text


def run(*words: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(CLI, ["pipeline", "capacity", *words])
    return outcome.exit_code, outcome.output


def test_the_command_prints_a_plan_with_its_reasons() -> None:
    status, output = run("--messages", "1M", "--size", "1KB", "--retention", "7d")
    assert status == 0
    assert "1.84 PB" in output
    assert "disk decides" in output
    status, output = run("--messages", "1M", "--size", "1KB", "--broker-write", "50MB", "--json")
    assert json.loads(output)["plan"]["brokers"] > 0


def test_the_command_shows_examples_and_refuses_unknown_ones() -> None:
    status, output = run("--example", "all")
    assert status == 0
    assert all(example.name in output for example in EXAMPLES)
    status, output = run("--example", "nothing")
    assert status == 2
    assert "day-on-ssd" in output


def test_the_command_says_what_is_missing_or_malformed() -> None:
    assert run()[0] == 2
    status, output = run("--messages", "many", "--size", "1KB")
    assert status == 2
    assert "'many' is not a number" in output
