"""The four ways through the house, as docs/architecture.md has them: what is named there exists, and is
counted right. That the ways are taken as they are written down is seen in the simulator, by a test there."""

from __future__ import annotations

import pytest

from tests.harness.four_ways import WAYS, described, functions_of, table


def test_every_way_is_described() -> None:
    assert list(described()) == [way.title for way in WAYS]


@pytest.mark.parametrize("title", [way.title for way in WAYS])
def test_every_step_is_a_function_of_the_module_that_is_named(title: str) -> None:
    missing = [
        step
        for step in described()[title]
        if step.partition(":")[2] not in functions_of(step.partition(":")[0])
    ]
    assert not missing, f"docs/architecture.md, {title}: these are gone, or have other names: {missing}"


def test_the_table_counts_the_steps_and_their_files() -> None:
    steps = described().values()
    assert [(row.hops, row.files) for row in table()] == [
        (len(way), len({step.partition(":")[0] for step in way})) for way in steps
    ]


def test_no_way_has_become_longer_than_three_quarters_of_what_it_was() -> None:
    long = [row.way for row in table() if 4 * row.hops > 3 * row.hops_before]
    assert not long, f"these have more than three quarters of the hops that they had once: {long}"
