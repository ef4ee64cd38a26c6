"""Archives in an object store: a real server that speaks S3, reached from commands, Spark and tasks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace.pipeline import read_with_archive
from millrace.pipeline.lake.archive import ArchiveOptions, TopicArchive
from millrace.pipeline.lake.errors import ConcurrentArchive, NoArchive
from millrace.pipeline.lake.maintenance import Upkeep, maintain
from millrace.pipeline.lake.replay import Replay, ReplayOptions
from millrace.pipeline.spark.stores import s3_settings
from tests.harness.millrace import MILLRACE, MillraceProcess
from tests.harness.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from tests.harness.topics import unique_name
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.declared_support import DEADLINE_S, received, run_once, send, write_file
from tests.pipeline.lake_support import (
    all_offsets,
    broker_options,
    consume,
    numbered,
    offsets_in,
    produce,
    records_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, extra_jars: frozenset[str]) -> Iterator[ObjectStore]:
    if "s3" not in extra_jars:
        pytest.skip("Hadoop's file system for S3 is not in the cache and cannot be fetched")
    server = ObjectStore(tmp_path_factory.mktemp("store"))
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def bucket(store: ObjectStore, spark: SparkSession) -> str:
    """A bucket that the shared session reaches: its settings are those of `--s3-endpoint` and of the keys."""
    name = store.make_bucket()
    configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
    keys = {"spark.hadoop.fs.s3a.access.key": ACCESS_KEY, "spark.hadoop.fs.s3a.secret.key": SECRET_KEY}
    for key, value in (s3_settings(store.endpoint) | keys).items():
        configuration.set(key.removeprefix("spark.hadoop."), value)
    return name


def test_the_command_archives_into_a_bucket_and_goes_on_there(
    spark: SparkSession, broker: MillraceProcess, topic: str, store: ObjectStore, bucket: str
) -> None:
    """As users do it: the process knows the endpoint by an option and the keys by its environment."""
    for partition in (0, 1):
        produce(broker.bootstrap, topic, partition, numbered(topic, 0, 200))
    root = f"s3://{bucket}/commands"
    words = [MILLRACE, "pipeline", "archive", topic, "--to", root, "--once", "--batch-records", "150"]
    words += ["--bootstrap-server", broker.bootstrap, "--master", "local[1]", "--s3-endpoint", store.endpoint]
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    done = subprocess.run(
        words, env=os.environ | keys, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{topic}: 400 offsets archived in 3 commits" in done.stderr
    log = [name.rpartition("/")[2] for name in store.names(bucket, f"commands/{topic}/_delta_log/")]
    commits = sorted(name for name in log if name.endswith(".json"))
    assert commits == [f"{version:020}.json" for version in range(4)]
    # Another driver goes on where that one ended.
    produce(broker.bootstrap, topic, 0, numbered(topic, 200, 210))
    archive = archived(spark, broker.bootstrap, topic, root)
    assert archive.ledger.sequence == 4
    assert offsets_in(archive.table.read()) == all_offsets(210, 200)


def archived(spark: SparkSession, bootstrap: str, topic: str, root: str, **options: Any) -> TopicArchive:
    broker = broker_options(bootstrap)
    archive = TopicArchive(spark, topic, ArchiveOptions(root=root, broker=broker, **options))
    with broker.client() as client:
        archive.open(client)
        bounds = archive.ends(client)
        while archive.step(bounds) is not None:
            pass
    return archive


def test_a_bucket_is_replayed_joined_and_kept_up(
    spark: SparkSession, broker: MillraceProcess, topic: str, store: ObjectStore, bucket: str
) -> None:
    for partition in (0, 1):
        produce(broker.bootstrap, topic, partition, numbered(topic, 0, 200), codec="lz4")
    root = f"s3a://{bucket}/lake"
    archive = archived(spark, broker.bootstrap, topic, root, batch_records=100)

    # The second of two archives in one driver is found out before it commits anything.
    late = TopicArchive(
        spark, topic, ArchiveOptions(root=root, broker=broker_options(broker.bootstrap), batch_records=5)
    )
    produce(broker.bootstrap, topic, 0, numbered(topic, 200, 220))
    with broker_options(broker.bootstrap).client() as client:
        late.open(client)
        bounds = archive.ends(client)
        assert archive.step(bounds) is not None
        with pytest.raises(ConcurrentArchive):
            late.step(bounds)

    before = store.names(bucket, f"lake/{topic}/date=")
    upkeep = Upkeep(compact_after=1, vacuum_hours=0)
    done = maintain(spark, archive.table, archive.table.state().ledger, upkeep, today=date(2026, 2, 1))
    assert done.files_joined >= 4
    assert len(store.names(bucket, f"lake/{topic}/date=")) < len(before)

    produce(broker.bootstrap, topic, 1, numbered(topic, 200, 230))
    options = {"archive": root, "subscribe": topic, "bootstrap.servers": broker.bootstrap}
    access = {
        "fs.s3a.endpoint": store.endpoint,
        "fs.s3a.access.key": ACCESS_KEY,
        "fs.s3a.secret.key": SECRET_KEY,
    }
    by_source = spark.read.format("millrace").options(**options, **access).load()
    for rows in (read_with_archive(spark, options), by_source):
        assert offsets_in(rows) == all_offsets(220, 230)
    with pytest.raises(NoArchive):
        read_with_archive(spark, {**options, "archive": f"s3a://{bucket}/elsewhere"})

    into = unique_name("back")
    work = ReplayOptions(root=root, topic=topic, into=into, broker=broker_options(broker.bootstrap))
    replay = Replay(spark, work)
    plan = replay.prepare()
    replay.run(plan, lambda _: None)
    assert all(each.is_same for each in replay.verify(plan))
    assert records_of(consume(broker.bootstrap, into, 2)) == {
        0: numbered(topic, 0, 220),
        1: numbered(topic, 0, 200),
    }


PIPELINE = """\
pipeline: lake
bootstrap.servers: @bootstrap@
checkpoint: s3://@bucket@/checkpoint
sources:
  numbers: {topic: @numbers@, format: json, schema: n bigint, options: {maxOffsetsPerTrigger: 40}}
sinks:
  lake: {from: numbers, delta: "s3://@bucket@/numbers"}
  doubled: {sql: SELECT 2 * n AS twice FROM numbers, topic: @doubled@}
"""


def test_a_pipeline_keeps_its_progress_and_its_table_in_a_bucket(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path, bucket: str
) -> None:
    numbers, doubled = make_topic(1, stem="numbers"), make_topic(1, stem="doubled")
    names = {"bootstrap": broker.bootstrap, "numbers": numbers, "doubled": doubled, "bucket": bucket}
    path = write_file(tmp_path, PIPELINE, **names)
    for part in range(2):
        send(broker.bootstrap, numbers, [{"n": part * 60 + number} for number in range(60)])
        run_once(spark, path)
    rows = spark.read.format("delta").load(f"s3a://{bucket}/numbers").collect()
    assert sorted(row["n"] for row in rows) == list(range(120))
    assert len(received(broker.bootstrap, doubled, 120)) == 120
