"""What `archive`, `replay` and `backfill` print, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from millrace.cli.pipeline.lake_reports import (
    VerificationFailed,
    announce,
    archive_reporter,
    print_replay_plan,
    print_rows,
    report,
)
from millrace.pipeline.lake.archive import Step
from millrace.pipeline.lake.replay import PartitionPlan, ReplayPlan
from millrace.pipeline.lake.verify import Comparison, Fingerprint

PLAN = ReplayPlan(
    version=3,
    group="g",
    partitions={1: PartitionPlan(5, 9, 5), 0: PartitionPlan(0, 3, 4)},
    left={1: PartitionPlan(8, 9, 2)},
    target_start={},
    is_created=True,
)


def test_commits_are_told_one_by_one_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    with archive_reporter(is_once=False) as reporter:
        reporter.planned("t", 1_500)
        reporter.stepped("t", Step(ranges={0: (0, 1_000)}, lost={2: (5, 9)}, remaining=500))
        reporter.stepped("t", Step(ranges={0: (1_000, 1_500)}, lost={}, remaining=0))
        reporter.failed("t", "the disk is full")
        reporter.summarise()
    assert capsys.readouterr().err.splitlines() == [
        "t-2: offsets 5 to 8 were gone before they were archived",
        "t: 1,000 offsets committed, 500 left",
        "t: 500 offsets committed, 0 left",
        "t: will be tried again: the disk is full",
        "t: 1,500 offsets archived in 2 commits",
    ]


def test_a_single_pass_says_first_how_much_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with archive_reporter(is_once=True) as reporter:
        reporter.planned("t", 1_500)
        reporter.planned("empty", 0)
        reporter.summarise()
    assert capsys.readouterr().err.splitlines() == [
        "t: 1,500 offsets to archive",
        "t: 0 offsets archived in 0 commits",
        "empty: 0 offsets archived in 0 commits",
    ]


def test_a_replay_that_goes_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    announce(PLAN, "copy")
    assert capsys.readouterr().err.splitlines() == [
        "created topic copy; it keeps records for ever unless --config said otherwise",
        "7 of 9 records were sent before; going on behind them",
    ]


def test_a_plan_says_what_is_left_to_send(capsys: pytest.CaptureFixture[str]) -> None:
    print_replay_plan(PLAN, as_json=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["0", "0", "3", "4", "0"], ["1", "5", "9", "5", "2"]]
    print_replay_plan(PLAN, as_json=True)
    first = orjson.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"partition": 0, "first": 0, "last": 3, "records": 4, "to_send": 0}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_difference_is_shown_and_then_fails(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    same = Comparison(partition=0, wanted=Fingerprint(4, 255), found=Fingerprint(4, 255))
    report([same], "copy", as_json=as_json)
    other = Comparison(partition=1, wanted=Fingerprint(4, 255), found=Fingerprint(3, 1))
    with pytest.raises(VerificationFailed, match="copy differs from the archive in partition 1: "):
        report([same, other], "copy", as_json=as_json)
    last = capsys.readouterr().out.splitlines()[-1]
    if as_json:
        document = orjson.loads(last)
        assert (document["same"], document["archived_checksum"]) == (False, "00000000000000ff")
    else:
        assert last.split() == ["1", "4", "3", "00000000000000ff", "0000000000000001", "FAIL"]


class Row(tuple[Any, ...]):
    __slots__ = ()

    def asDict(self, *, recursive: bool) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return dict(zip(("key", "at", "headers"), self, strict=True))


def test_values_that_json_has_not_are_made_readable(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row((b"k\xff", datetime(2026, 1, 2, tzinfo=UTC), [1]))
    frame: Any = SimpleNamespace(
        columns=["key", "at", "headers"], limit=lambda _count: SimpleNamespace(collect=lambda: [row])
    )
    print_rows(frame, as_json=True)
    expected = {"key": "k\\xff", "at": "2026-01-02T00:00:00+00:00", "headers": "[1]"}
    assert orjson.loads(capsys.readouterr().out) == expected
    print_rows(frame, as_json=False)
    assert capsys.readouterr().out.splitlines()[1].split() == list(expected.values())
