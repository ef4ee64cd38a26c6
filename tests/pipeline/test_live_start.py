"""Queries that start at the end of a topic while it is written to: the default of streams."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.millrace import MillraceProcess
from tests.harness.topics import create_topic, unique_name
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.drivers import driver as run_driver
from tests.pipeline.live_topic import LiveTopic, live_topic
from tests.pipeline.sink_support import read_committed
from tests.pipeline.test_source_stream import Collected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DEADLINE_S: Final = 120.0
PARTITIONS: Final = 2
PER_SECOND: Final = 5_000
BATCHES: Final = 3


@pytest.mark.parametrize(
    "starts", [4, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_fresh_queries_on_a_live_topic_read_all_from_where_they_began(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path, starts: int
) -> None:
    topic = make_topic(partitions=PARTITIONS, stem="live")
    with live_topic(broker.bootstrap, topic, PARTITIONS, PER_SECOND) as live:
        _wait_until(lambda: min(live.ends()) > 100)
        for number in range(starts):
            _start_once(spark, live, tmp_path / f"checkpoint-{number}")


def _start_once(spark: SparkSession, live: LiveTopic, checkpoint: Path) -> None:
    collected = Collected()
    before = live.ends()
    query = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", live.bootstrap)
        .option("subscribe", live.topic)
        .option("columns", "partition,offset")
        .load()
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        _wait_until(lambda: len(collected.batches) > BATCHES or not query.isActive)
        assert query.exception() is None, query.exception()
    finally:
        query.stop()
    for partition, began in enumerate(_began(checkpoint, live.topic)):
        assert before[partition] <= began
        offsets = [offset for number, offset in collected.offsets if number == partition]
        assert offsets == list(range(began, began + len(offsets)))
        assert len(offsets) > BATCHES


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])])
def test_a_driver_killed_in_its_first_batch_goes_on_without_loss_or_repeat(
    broker: MillraceProcess, tmp_path: Path, kills: int
) -> None:
    """Each round kills a fresh query once; moments within the first batch differ."""
    pytest.importorskip("pyspark")
    rng = random.Random(13)
    for number in range(kills):
        _kill_in_first_batch(broker.bootstrap, tmp_path / str(number), pause_s=rng.uniform(0, 1.0))


def _kill_in_first_batch(bootstrap: str, directory: Path, pause_s: float) -> None:
    directory.mkdir()
    source = create_topic(bootstrap, unique_name("live-source"), PARTITIONS)
    target = create_topic(bootstrap, unique_name("live-target"), PARTITIONS)
    checkpoint = directory / "checkpoint"
    hold = directory / "hold"
    hold.touch()
    words = [bootstrap, source, target, str(checkpoint), str(hold)]
    with live_topic(bootstrap, source, PARTITIONS, PER_SECOND) as live:
        _wait_until(lambda: min(live.ends()) > 100)
        before = live.ends()
        with run_driver("live_driver", directory / "first.log", [*words, "forever"]) as driver:
            driver.wait_until((checkpoint / "offsets" / "0").exists, "its first batch")
            planned = live.ends()
            time.sleep(pause_s)
            driver.kill()
        began = _began(checkpoint, source)
        assert not (checkpoint / "commits" / "0").exists(), "the driver was to be killed in its first batch"
        hold.unlink()
        # The topic goes on while there is no driver.
        then = live.ends()
        _wait_until(lambda: min(live.ends()) > max(then) + PER_SECOND // 10)
    with run_driver("live_driver", directory / "second.log", [*words, "available-now"]) as driver:
        driver.finish()
    ends = live.ends()
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for record in read_committed(bootstrap, target, PARTITIONS):
        found[record.partition].append(int(record.value or b""))
    for partition in range(PARTITIONS):
        assert before[partition] <= began[partition] <= planned[partition]
        assert sorted(found[partition]) == list(range(began[partition], ends[partition]))


def _began(checkpoint: Path, topic: str) -> list[int]:
    """Where the query began, by the first entry of its offset log."""
    text = (checkpoint / "offsets" / "0").read_text()
    (offset,) = [json.loads(line) for line in text.splitlines() if line.startswith('{"' + topic)]
    return [offset[topic]["partitions"][str(number)]["start"] for number in range(PARTITIONS)]


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)
