"""`millrace pipeline capacity`: quantities with units, a plan that adds up, and the worked examples."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from millrace.cli.pipeline.capacity import capacity
from millrace.pipeline.capacity.examples import EXAMPLES

LOAD = ("--messages", "1M", "--size", "1KB", "--retention", "7d")


def run(*words: str) -> Result:
    return CliRunner().invoke(capacity, words)


def plan(*words: str) -> Any:
    result = run(*LOAD, "--json", *words)
    assert result.exit_code == 0, result.output
    return orjson.loads(result.stdout)


def test_quantities_are_read_with_their_units() -> None:
    load = plan("--peak", "2", "--compression", "4")["load"]
    assert (load["messages_per_s"], load["message_bytes"], load["retention_s"]) == (1e6, 1e3, 604_800)
    assert (load["peak"], load["compression"], load["replication"]) == (2, 4, 3)


def test_more_of_anything_needs_more() -> None:
    base = plan()["plan"]
    assert plan("--retention", "14d")["plan"]["disk_bytes"] == pytest.approx(2 * base["disk_bytes"])
    assert plan("--spare", "3")["plan"]["brokers"] == base["brokers"] + 2
    assert plan("--broker-write", "1MB")["plan"]["brokers"] > base["brokers"]
    assert plan("--partitions", "100000")["plan"]["partitions"] == 100_000


def test_the_page_says_what_decides_and_where_the_figures_are_from() -> None:
    output = run(*LOAD).output
    assert " decides: " in output
    assert "Brokers and partitions by each need:" in output
    assert "- figures of a broker: " in output.splitlines()[-1]


@pytest.mark.parametrize(
    "words, reason",
    [
        ((), "Name a load with --messages and --size, or an --example."),
        (("--messages", "many", "--size", "1KB"), "is not a number such as"),
        (("--messages", "1", "--size", "1 mile"), "is not a size such as"),
        ((*LOAD, "--replication", "0"), "--replication"),
        ((*LOAD, "--disk-fill", "1.5"), "--disk-fill"),
        (("--example", "nothing"), "no example is called 'nothing'; there are all, "),
    ],
)
def test_what_is_missing_or_no_quantity_is_wrong_usage(words: tuple[str, ...], reason: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert reason in result.output


def test_examples_show_estimates_beside_the_plan() -> None:
    every = run("--example", "all").output
    assert all(f"{example.name}: {example.about}\n" in every for example in EXAMPLES)
    one = orjson.loads(run("--example", EXAMPLES[0].name, "--json").output)
    assert one["example"] == EXAMPLES[0].name
    assert len(one["rows"]) == len(EXAMPLES[0].estimates)
