"""Where offsets shall go: what the options say, and how a plan stays within the log."""

from __future__ import annotations

from typing import Any

import click
import pytest

from millrace.cli.group import offsets as group_offsets
from millrace.cli.group import share_groups
from millrace.cli.group import state as group_state
from millrace.cli.group.offsets import AtCommitted, ShiftedBy, Target, parse_any_duration_ms, target_of
from millrace.cli.moments import AtBeginning, AtEnd, AtOffset, AtTime

NOTHING: dict[str, Any] = {
    "to_earliest": False,
    "to_latest": False,
    "to_current": False,
    "to_offset": None,
    "shift_by": None,
    "to_datetime": None,
    "by_duration": None,
}


@pytest.mark.parametrize(
    "text, expected_ms",
    [
        ("1h30m", 5_400_000),
        ("-90s", 90_000),
        ("PT1H30M", 5_400_000),
        ("P1DT0.5S", 86_400_500),
        ("p2d", 172_800_000),
    ],
)
def test_durations_of_both_kinds(text: str, expected_ms: int) -> None:
    assert parse_any_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "soon", "1", "PT1X"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="PT1H30M"):
        parse_any_duration_ms(text)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"to_earliest": True}, AtBeginning()),
        ({"to_latest": True}, AtEnd()),
        ({"to_current": True}, AtCommitted()),
        # 0 is an offset like any other, and no missing option.
        ({"to_offset": 0}, AtOffset(0)),
        ({"shift_by": -3}, ShiftedBy(-3)),
        ({"to_datetime": "1970-01-01T00:00:01Z"}, AtTime(1_000)),
        ({"by_duration": "1s"}, AtTime(9_000)),
    ],
)
def test_one_option_names_the_target(options: dict[str, Any], expected: Target) -> None:
    assert target_of(NOTHING | options, now_ms=10_000) == expected


@pytest.mark.parametrize("options", [{}, {"to_earliest": True, "to_offset": 0}])
def test_no_target_or_two_are_wrong_usage(options: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError, match="exactly one of"):
        target_of(NOTHING | options, now_ms=0)


@pytest.mark.parametrize(
    "target, committed, expected, note",
    [
        (AtOffset(5), 20, 10, "5 is before the start"),
        (AtOffset(50), 20, 40, "50 is after the end"),
        (AtOffset(40), 20, 40, ""),
        (ShiftedBy(-15), 20, 10, "5 is before the start"),
        (ShiftedBy(3), 20, 23, ""),
        (ShiftedBy(3), None, 10, "no committed offset: the start"),
        (AtCommitted(), None, 40, "no committed offset: the end"),
        (AtCommitted(), 5, 10, "5 is before the start"),
        (AtTime(1), 20, 40, "no message since then: the end"),
        (AtBeginning(), 20, 10, ""),
        (AtEnd(), None, 40, ""),
    ],
)
def test_a_plan_stays_within_the_log(
    monkeypatch: pytest.MonkeyPatch, target: Target, committed: int | None, expected: int, note: str
) -> None:
    """The log goes from 10 to 40, and has nothing at or after the time that is asked for."""
    present = {} if committed is None else {("t", 0): committed}
    ends = iter([{("t", 0): 10}, {("t", 0): 40}, {("t", 0): -1}])
    monkeypatch.setattr(group_state, "log_offsets", lambda *_: next(ends))
    nobody: Any = None
    (planned,) = group_offsets.plan(nobody, nobody, present, [("t", 0)], target)
    assert (planned.old, planned.new, planned.note) == (committed, expected, note)


def test_a_share_group_is_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_state, "committed_offsets", lambda *_: {("t", 0): (7, "")})
    monkeypatch.setattr(group_state, "start_offsets", lambda *_: {("t", 0): 3, ("t", 1): None})
    nobody: Any = None
    assert group_offsets.present_offsets(nobody, nobody, "g", is_share=False) == {("t", 0): 7}
    assert group_offsets.present_offsets(nobody, nobody, "g", is_share=True) == {("t", 0): 3}
    scope = group_offsets.partitions_in_scope(nobody, nobody, "g", (), is_share=True)
    assert scope == [("t", 0), ("t", 1)]
    altered: list[object] = []
    monkeypatch.setattr(share_groups, "alter", lambda *call: altered.append(call[1:]))
    planned = group_offsets.PlannedOffset(topic="t", partition=1, old=None, new=5)
    group_offsets.execute(nobody, nobody, "g", [planned], is_share=True)
    assert altered == [("g", {("t", 1): 5})]
