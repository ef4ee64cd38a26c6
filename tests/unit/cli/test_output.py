"""Tables and progress where nobody watches: plain columns and few log lines."""

from __future__ import annotations

import pytest

from millrace.cli import output


def test_a_table_in_a_pipe_is_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("NAME", "COUNT"), [("a", 1), ("longer", 1000), ("none", None)], right=("COUNT",))
    assert capsys.readouterr().out == "NAME    COUNT\na           1\nlonger   1000\nnone\n"


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": [1, "ü"]})
    assert capsys.readouterr().out == '{"a":[1,"ü"]}\n'


def test_progress_without_a_terminal_is_a_log_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("millrace.cli.output.time.monotonic", lambda: now)
    with output.progress("sending", total=200) as bar:
        bar.advance(50, note="a")
        now += output.LOG_INTERVAL_S
        bar.advance(50, note="b")
        bar.advance(50, note="c")
    assert capsys.readouterr().err == "sending 50% b\n"
