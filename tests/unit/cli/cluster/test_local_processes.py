"""Processes that outlive a command are known again by pid and time of start."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from millrace.cli.cluster.local_processes import LocalProcess, start, tail


def test_a_process_is_told_to_end_and_is_gone(tmp_path: Path) -> None:
    # `tail -f` of a file that nobody writes waits for ever.
    waits = ["tail", "-f", os.devnull]
    process = start(waits, output=tmp_path / "out", environment=os.environ)
    assert process.is_running()
    assert process.signal(signal.SIGKILL) is True
    assert process.wait_gone(10)
    assert not process.is_running()
    assert process.signal(signal.SIGTERM) is False


def test_another_process_with_the_same_pid_is_never_touched() -> None:
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    me = LocalProcess(os.getpid(), stat.rpartition(")")[2].split()[19])
    assert me.is_running()
    stranger = replace(me, started="1")
    assert not stranger.is_running()
    # This would end the test run.
    assert stranger.signal(signal.SIGKILL) is False
    assert stranger.wait_gone(0)


def test_waiting_ends_in_time_while_a_process_goes_on() -> None:
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    me = LocalProcess(os.getpid(), stat.rpartition(")")[2].split()[19])
    assert me.wait_gone(-1) is False


def test_output_is_appended_in_a_directory_that_is_made(tmp_path: Path) -> None:
    output = tmp_path / "logs" / "out"
    for _ in range(2):
        process = start(
            ["/bin/sh", "-c", "echo $WORD; echo bad >&2"], output=output, environment={"WORD": "hi"}
        )
        assert process.wait_gone(10)
    assert output.read_text() == "hi\nbad\nhi\nbad\n"


def test_the_tail_of_a_file_is_its_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert tail(path) == ""
    path.write_bytes(b"one\ntwo\nthr\xffe\n")
    assert tail(path, lines=2) == "two\nthr�e"
