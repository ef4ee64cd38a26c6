"""Exactly once when workers, the driver and the broker are killed in the middle of a stream."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import StreamingQueryException

from tests.compat.transactions.reading import COMMITTED, UNCOMMITTED, end_offsets
from tests.harness.millrace import MillraceProcess
from tests.harness.topics import create_topic
from tests.pipeline.drivers import Driver
from tests.pipeline.drivers import driver as run_driver
from tests.pipeline.sink_support import values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILES: Final = 6
LINES: Final = 400
PARTITIONS: Final = 3
WORKERS_KILLED: Final = (1, 2)
DRIVER_KILLED: Final = 3
BROKER_KILLED: Final = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_output_equals_input_through_all_kills(tmp_path: Path) -> None:
    """Each kill finds the tasks of a batch held with open transactions, so that it hits what it is to hit."""
    source, checkpoint, holds = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "holds"
    source.mkdir()
    holds.mkdir()
    for number in range(FILES):
        path = source / f"{number:03}.txt"
        path.write_text("".join(f"file {number} line {line}\n" for line in range(LINES)))
        # Spark reads files by their age.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    for number in (*WORKERS_KILLED, DRIVER_KILLED, BROKER_KILLED):
        (holds / str(number)).touch()
    broker = MillraceProcess(tmp_path / "broker")
    broker.start()
    try:
        topic = create_topic(broker.bootstrap, "output", PARTITIONS)
        words = [broker.bootstrap, topic, str(source), str(checkpoint), str(holds)]
        with run_driver("sink_driver", tmp_path / "first.log", words) as first:
            for number in WORKERS_KILLED:
                _wait_until_held(first, broker.bootstrap, topic, checkpoint, number)
                _kill_workers(first)
                (holds / str(number)).unlink()
            _wait_until_held(first, broker.bootstrap, topic, checkpoint, DRIVER_KILLED)
            first.kill()
        (holds / str(DRIVER_KILLED)).unlink()
        with run_driver("sink_driver", tmp_path / "second.log", words) as second:
            _wait_until_held(second, broker.bootstrap, topic, checkpoint, BROKER_KILLED)
            broker.kill()
            broker.start()
            (holds / str(BROKER_KILLED)).unlink()
            second.finish()
        found = values_of(broker.bootstrap, topic, PARTITIONS)
    finally:
        broker.end()
    assert sorted(found) == sorted(f"file {n} line {line}" for n in range(FILES) for line in range(LINES))


def test_a_query_whose_commit_was_killed_half_way_is_made_good_by_its_next_start(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    """Spark tries tasks again, but no commit: the query fails."""
    from tests.pipeline.dying_sink import NAME, DyingSource

    spark.dataSource.register(DyingSource)
    source, died = tmp_path / "in", tmp_path / "died"
    source.mkdir()
    values = [f"line {number}" for number in range(100)]
    (source / "lines.txt").write_text("".join(f"{value}\n" for value in values))

    def start() -> StreamingQuery:
        writer = spark.readStream.text(str(source)).repartition(2, "value").writeStream.format(NAME)
        options = {"bootstrap.servers": broker.bootstrap, "topic": topic, "died": str(died)}
        checkpoint = str(tmp_path / "checkpoint")
        return (
            writer.options(**options)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(StreamingQueryException, match="worker exited unexpectedly"):
        start().awaitTermination()
    assert died.exists()
    assert 0 < len(values_of(broker.bootstrap, topic, 2)) < len(values), "one of two tasks is committed"
    start().awaitTermination()
    assert sorted(values_of(broker.bootstrap, topic, 2)) == sorted(values)


def _wait_until_held(driver: Driver, bootstrap: str, topic: str, checkpoint: Path, batch: int) -> None:
    """Wait until a task of the batch has written something: what is open then is of no batch before."""
    driver.wait_until(lambda: _commits(checkpoint) == batch, f"the commit before batch {batch}")
    partitions = [(topic, number) for number in range(PARTITIONS)]
    driver.wait_until(
        lambda: (
            end_offsets(bootstrap, partitions, COMMITTED) != end_offsets(bootstrap, partitions, UNCOMMITTED)
        ),
        f"the first rows of batch {batch}",
    )
    assert _commits(checkpoint) == batch


def _commits(checkpoint: Path) -> int:
    directory = checkpoint / "commits"
    return sum(1 for each in directory.iterdir() if each.name.isdecimal()) if directory.exists() else 0


def _kill_workers(driver: Driver) -> None:
    """Kill every Python worker of the driver."""
    workers = _workers(driver.pid)
    assert workers, "there are no workers"
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
