"""Exactly once when workers, the driver and the broker are killed in the middle of a stream."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.compat.transactions.reading import COMMITTED, UNCOMMITTED, end_offsets
from tests.harness.millrace import MillraceProcess
from tests.harness.topics import create_topic
from tests.pipeline.drivers import driver as run_driver
from tests.pipeline.sink_support import values_of

DEADLINE_S: Final = 240.0
FILES: Final = 8
LINES: Final = 400
PARTITIONS: Final = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_output_equals_input_through_all_kills(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(FILES):
        lines = "".join(f"file {number} line {line}\n" for line in range(LINES))
        (source / f"{number:03}.txt").write_text(lines)
    broker = MillraceProcess(tmp_path / "broker")
    broker.start()
    try:
        topic = create_topic(broker.bootstrap, "output", PARTITIONS)
        words = [broker.bootstrap, topic, str(source), str(checkpoint)]
        with run_driver("sink_driver", tmp_path / "first.log", words) as first:
            for done in (1, 2):
                _wait_for_commits(checkpoint, done, first)
                _wait_for_open_transaction(broker.bootstrap, topic, first)
                _kill_workers(first)
            _wait_for_commits(checkpoint, 3, first)
            _wait_for_open_transaction(broker.bootstrap, topic, first)
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(60)
        assert _commits(checkpoint) < FILES, "the driver was to be killed in the middle of its work"
        with run_driver("sink_driver", tmp_path / "second.log", words) as second:
            _wait_for_commits(checkpoint, 5, second)
            broker.kill()
            broker.start()
            assert second.wait(DEADLINE_S) == 0, (tmp_path / "second.log").read_text()[-3000:]
        found = values_of(broker.bootstrap, topic, PARTITIONS)
    finally:
        broker.end()
    assert sorted(found) == sorted(f"file {n} line {line}" for n in range(FILES) for line in range(LINES))


def _wait_for_commits(checkpoint: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while _commits(checkpoint) < count:
        assert driver.poll() is None, f"the driver ended with {driver.returncode}"
        assert time.monotonic() < deadline, "the query does not get on"
        time.sleep(0.05)


def _wait_for_open_transaction(bootstrap: str, topic: str, driver: subprocess.Popen[bytes]) -> None:
    """Wait until a task has written something that is not committed yet."""
    partitions = [(topic, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + DEADLINE_S
    while end_offsets(bootstrap, partitions, COMMITTED) == end_offsets(bootstrap, partitions, UNCOMMITTED):
        assert driver.poll() is None, f"the driver ended with {driver.returncode}"
        assert time.monotonic() < deadline, "no task writes anything"
        time.sleep(0.01)


def _commits(checkpoint: Path) -> int:
    directory = checkpoint / "commits"
    return sum(1 for each in directory.iterdir() if each.name.isdecimal()) if directory.exists() else 0


def _kill_workers(driver: subprocess.Popen[bytes]) -> None:
    """Kill every Python worker of the driver, once there are some."""
    deadline = time.monotonic() + DEADLINE_S
    while not (workers := _workers(driver.pid)):
        assert time.monotonic() < deadline, "there are no workers"
        time.sleep(0.02)
    for pid in workers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _workers(driver_pid: int) -> list[int]:
    """Forks of Spark's daemon for Python workers: children of a daemon among the driver's descendants."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(entry.name)] = int(stat[1])
        if b"pyspark.daemon" in command:
            daemons.add(int(entry.name))
    return [pid for pid in daemons if parents[pid] in daemons and _descends(pid, driver_pid, parents)]


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
