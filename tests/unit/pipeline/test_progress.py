"""What the board makes of Spark's events: rates, lag, time left, lines and metrics."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from millrace.pipeline.progress import (
    ProgressBoard,
    describe,
    format_seconds,
    lag_of,
    metrics_served,
    shown,
)


def event(batch: int, rows: int, *, end: int = 0, latest: int = 0, **more: Any) -> dict[str, Any]:
    def offset(at: int) -> dict[str, Any]:
        return {"orders": {"id": "abc", "partitions": {"0": {"offset": at, "epoch": 3}}}}

    return {
        "id": "q",
        "runId": "r",
        "name": "out",
        "batchId": batch,
        "numInputRows": rows,
        "batchDuration": 500,
        "timestamp": "2026-01-31T08:00:00.000Z",
        "sources": [{"endOffset": offset(end), "latestOffset": offset(latest)}],
        **more,
    }


def test_a_board_adds_up_what_batches_did() -> None:
    board = ProgressBoard("p")
    board.started("out", query_id="q", run_id="r")
    board.advanced(event(0, 1000, end=1000, latest=5000))
    state = {"numRowsTotal": 7, "memoryUsedBytes": 100, "numRowsDroppedByWatermark": 2}
    board.advanced(
        event(
            1,
            2000,
            end=3000,
            latest=5000,
            stateOperators=[state],
            eventTime={"watermark": "2026-01-01T00:00:00Z"},
        )
    )
    (progress,) = board.snapshot()
    assert (progress.batch, progress.batches, progress.rows, progress.lag) == (1, 2, 3000, 2000)
    assert progress.rows_per_second == 3000
    assert progress.left_s == pytest.approx(2 / 3)
    assert (progress.state_rows, progress.late_rows, progress.watermark) == (7, 2, "2026-01-01T00:00:00Z")
    assert describe(progress) == "out: batch 1, 2,000 rows in 0.5 s, 3,000 rows/s, lag 2,000, about 1 s left"
    board.idle("r")
    assert board.snapshot()[0].state == "idle"
    board.ended("r", "it broke")
    assert describe(board.snapshot()[0]) == "out: failed: it broke"


@pytest.mark.parametrize("end, latest, lag", [
    ({"t": {"id": "x", "partitions": {"0": {"offset": 3, "epoch": 1}}}},
     {"t": {"id": "x", "partitions": {"0": {"offset": 9, "epoch": 5}, "1": {"offset": 4, "epoch": 0}}}}, 10),
    ('{"t":{"0":5}}', '{"t":{"0":7}}', 2),
    ({"t": {"0": 9}}, {"t": {"0": 7}}, 0),
    ({"logOffset": 3}, None, None),
    ("null", "null", None),
    ("not json", {"t": 1}, None),
])  # fmt: skip
def test_lag_is_what_the_source_still_holds(end: Any, latest: Any, lag: int | None) -> None:
    assert lag_of({"endOffset": end, "latestOffset": latest}) == lag


def test_a_batch_that_is_reported_again_while_waiting_counts_once() -> None:
    board = ProgressBoard("p")
    for _ in range(3):
        board.advanced(event(4, 0))
    assert board.snapshot()[0].batches == 1


@pytest.mark.parametrize("seconds, text", [
    (0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")
])  # fmt: skip
def test_times_read_like_times(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_lines_come_at_changes_and_not_for_every_batch(capsys: pytest.CaptureFixture[str]) -> None:
    board = ProgressBoard("p")
    with shown(board, bars=False):
        board.started("out", query_id="q", run_id="r")
        for batch in range(50):
            board.advanced(event(batch, 10))
        board.ended("r", None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "out: starting"
    assert lines[-1] == "out: batch 49, ended, 500 rows in all, lag 0"
    # However slow this machine is, a line takes seconds to come due again.
    assert len(lines) < 25


def test_bars_can_be_shown_where_there_is_no_terminal() -> None:
    board = ProgressBoard("p")
    with shown(board, bars=True):
        board.started("out", query_id="q", run_id="r")
        board.advanced(event(0, 1000, end=1000, latest=5000))
        board.ended("r", None)


def test_metrics_are_served_while_the_block_runs() -> None:
    board = ProgressBoard("p")
    board.advanced(event(3, 1000, end=1000, latest=5000))
    board.batch_job("copy", state="ended")
    with (
        metrics_served(board, host="127.0.0.1", port=0) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer,
    ):
        text = answer.read().decode()
    assert 'millrace_pipeline_lag_records{pipeline="p",query="out"} 4000.0' in text
    assert 'millrace_pipeline_rows_total{pipeline="p",query="out"} 1000.0' in text
    assert 'millrace_pipeline_up{pipeline="p",query="copy"} 0.0' in text
    assert 'millrace_pipeline_lag_records{pipeline="p",query="copy"}' not in text
