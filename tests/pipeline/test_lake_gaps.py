"""Archives of topics with gaps: compaction, aborted transactions and markers leave offsets empty."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millrace.pipeline import read_with_archive
from millrace.pipeline.lake.archive import ArchiveOptions, TopicArchive
from millrace.pipeline.lake.ranges import parse_selection
from millrace.pipeline.lake.replay import Replay, ReplayOptions
from tests.harness.millrace import MillraceProcess
from tests.harness.process import eventually
from tests.harness.topics import admin_client, create_topic, unique_name
from tests.pipeline.lake_support import (
    NOON_MS,
    Record,
    broker_options,
    consume,
    ends,
    produce,
    records_of,
    send,
    transactional,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = 60
TURNS = 9
EACH = 200
ROUND_S = 0.5
"""More than a round of the cleaner takes."""


@pytest.fixture(scope="module")
def cleaning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MillraceProcess]:
    process = MillraceProcess(
        tmp_path_factory.mktemp("cleaning"),
        {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"},
    )
    process.start()
    yield process
    process.end()


def test_a_compacted_topic_with_transactions_is_archived_and_comes_back(
    spark: SparkSession, cleaning_broker: MillraceProcess, tmp_path: Path
) -> None:
    bootstrap = cleaning_broker.bootstrap
    topic = _compacted_topic(bootstrap)
    written = consume(bootstrap, topic, 1)
    offsets = [offset for offset, _ in written[0]]
    end = ends(bootstrap, topic, 1)[0]
    assert sum(after - before > 1 for before, after in pairwise(offsets)) > 10, "no gaps to speak of"
    assert offsets[-1] < end - 1, "the last offsets should be those of an aborted transaction"

    broker = broker_options(bootstrap)
    archive = TopicArchive(spark, topic, ArchiveOptions(root=str(tmp_path), broker=broker, batch_records=300))
    with broker.client() as client:
        archive.open(client)
        bounds = archive.ends(client)
        steps = 0
        while archive.step(bounds) is not None:
            steps += 1
    # Most of these ranges have fewer records than offsets, and some may have none.
    assert steps >= end // 300
    assert archive.ledger.next == {0: end}
    rows = archive.table.read().select("offset", "key", "value").orderBy("offset").collect()
    assert [(row[0], bytes(row[1]), row[2] and bytes(row[2])) for row in rows] == [
        (offset, record.key, record.value) for offset, record in written[0]
    ]

    back = unique_name("back")
    replay = Replay(
        spark, ReplayOptions(root=str(tmp_path), topic=topic, into=back, broker=broker, portion_records=250)
    )
    plan = replay.prepare()
    assert plan.records == len(offsets) < plan.partitions[0].last + 1 - plan.partitions[0].first
    assert replay.run(plan, lambda _: None) == len(offsets)
    assert records_of(consume(bootstrap, back, 1)) == records_of(written)
    (comparison,) = replay.verify(plan)
    assert comparison.is_same
    assert comparison.found.records == len(offsets)

    _more_after_the_archive(spark, bootstrap, topic, tmp_path, offsets, end)
    _between_two_offsets_that_are_gone(spark, bootstrap, topic, tmp_path, written[0])


def _more_after_the_archive(
    spark: SparkSession, bootstrap: str, topic: str, root: Path, offsets: list[int], end: int
) -> None:
    """The archive has what the topic had; behind it comes what the topic has now, gaps or not."""
    produce(bootstrap, topic, 0, [Record(b"new", b"value", (), NOON_MS)])
    options = {"archive": str(root), "subscribe": topic, "bootstrap.servers": bootstrap}
    for both in (
        read_with_archive(spark, options),
        spark.read.format("millrace").options(**options, columns="offset").load(),
    ):
        assert sorted(row["offset"] for row in both.select("offset").collect()) == [*offsets, end]


def _between_two_offsets_that_are_gone(
    spark: SparkSession, bootstrap: str, topic: str, root: Path, written: list[tuple[int, Record]]
) -> None:
    offsets = [offset for offset, _ in written]
    gaps = [before + 1 for before, after in pairwise(offsets) if after - before > 1]
    start, stop = gaps[2], gaps[-2]
    into = unique_name("part")
    replay = Replay(
        spark,
        ReplayOptions(
            root=str(root),
            topic=topic,
            into=into,
            broker=broker_options(bootstrap),
            selection=parse_selection(str(start), str(stop)),
        ),
    )
    plan = replay.prepare()
    replay.run(plan, lambda _: None)
    wanted = [record for offset, record in written if start <= offset < stop]
    assert records_of(consume(bootstrap, into, 1)) == {0: wanted}
    assert all(each.is_same for each in replay.verify(plan))


def _compacted_topic(bootstrap: str) -> str:
    """A topic that the cleaner has been at, with an aborted transaction at its end."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": str(1 << 20),
        "delete.retention.ms": "3600000",
    }
    topic = create_topic(bootstrap, unique_name("compacted"), configs=configs)
    rng = random.Random(9)
    producer = transactional(bootstrap, unique_name("writer"))
    for turn in range(TURNS):
        records = [
            Record(
                b"%d" % rng.randrange(KEYS),
                None if rng.random() < 0.05 else rng.randbytes(800),
                (("turn", b"%d" % turn),),
                NOON_MS + turn,
            )
            for _ in range(EACH)
        ]
        if turn % 3 == 0:
            produce(bootstrap, topic, 0, records, codec="zstd")
            continue
        producer.begin_transaction()
        send(producer, topic, 0, records)
        producer.flush(60)
        producer.abort_transaction(60) if turn % 3 == 1 else producer.commit_transaction(60)
    # The active segment is never cleaned: fill it, so that another one begins.
    filling = [Record(b"filling-%d" % number, bytes(300_000), (), NOON_MS) for number in range(8)]
    produce(bootstrap, topic, 0, filling)
    eventually(lambda: len(consume(bootstrap, topic, 1)[0]) < 2 * EACH, deadline_s=120, pause_s=0.3)
    _stop_cleaning(bootstrap, topic)
    producer.begin_transaction()
    send(producer, topic, 0, [Record(b"never", b"seen", (), NOON_MS)] * 3)
    producer.flush(60)
    producer.abort_transaction(60)
    ends(bootstrap, topic, 1)
    return topic


def _stop_cleaning(bootstrap: str, topic: str) -> None:
    """From here on the topic stays as it is."""
    entry = ConfigEntry("min.cleanable.dirty.ratio", "1.0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_client(bootstrap)
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(60)
    before = consume(bootstrap, topic, 1)
    while True:
        # The cleaner may have been in the middle of a round.
        time.sleep(ROUND_S)
        now = consume(bootstrap, topic, 1)
        if now == before:
            return
        before = now
