"""Archives while things go wrong and on: killed drivers, rivals, retention on both sides, upkeep."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException

from millrace.cli.pipeline import lake as pipeline_lake
from millrace.client.errors import InvalidOption
from millrace.core.override import override
from millrace.pipeline import read_with_archive
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.lake.archive import ArchiveOptions, Step, TopicArchive
from millrace.pipeline.lake.archived_rows import ArchivedTopic
from millrace.pipeline.lake.archiving import ArchiveRun
from millrace.pipeline.lake.decoding import make_decoder
from millrace.pipeline.lake.errors import ConcurrentArchive, NoArchive, RecordsLost, TopicRecreated
from millrace.pipeline.lake.maintenance import Done, Upkeep, maintain
from millrace.pipeline.lake.table import ArchiveTable
from tests.harness.millrace import MILLRACE, MillraceProcess
from tests.harness.process import eventually
from tests.harness.topics import admin_client, create_topic
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.lake_support import (
    DAY_MS,
    DEADLINE_S,
    NOON_MS,
    Record,
    all_offsets,
    broker_options,
    delete_before,
    numbered,
    offsets_in,
    produce,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

TODAY = date(2026, 2, 1)


@dataclass
class Listener:
    """Remembers what an archive reports, and stops it after some steps."""

    stop: threading.Event = field(default_factory=threading.Event)
    steps: list[Step] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def planned(self, topic: str, offsets: int) -> None:
        pass

    def stepped(self, topic: str, step: Step) -> None:
        self.steps.append(step)

    def maintained(self, topic: str, done: Done) -> None:
        self.done.append(done)

    def failed(self, topic: str, reason: str) -> None:
        self.failures.append(reason)


def archive_once(
    spark: SparkSession,
    broker: MillraceProcess,
    topic: str,
    root: Path,
    upkeep: Upkeep | None = None,
    **options: Any,
) -> Listener:
    listener = Listener()
    run = ArchiveRun(
        spark=spark,
        topics=[topic],
        options=ArchiveOptions(root=str(root), broker=broker_options(broker.bootstrap), **options),
        upkeep=upkeep or Upkeep(compact_after=None),
        reporter=listener,
        stop=listener.stop,
        today=lambda: TODAY,
    )
    run.once()
    return listener


def values_in(rows: DataFrame) -> list[bytes]:
    found = rows.select("partition", "offset", "value").collect()
    return [bytes(row[2]) for row in sorted(found, key=lambda row: (row[0], row[1]))]


@pytest.mark.timeout(900)
def test_a_killed_archive_goes_on_exactly_once(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    for partition in (0, 1):
        produce(broker.bootstrap, topic, partition, numbered(topic, 0, 5000), codec="lz4")
    words = [
        MILLRACE,
        "pipeline",
        "archive",
        topic,
        "--to",
        str(tmp_path),
        "--once",
        "--batch-records",
        "200",
    ]
    words += ["--bootstrap-server", broker.bootstrap, "--master", "local[1]"]
    log = tmp_path / topic / "_delta_log"
    output = tmp_path / "archive.out"
    with output.open("wb") as sink:
        process = subprocess.Popen(words, stdout=sink, stderr=sink, start_new_session=True)
    try:
        eventually(
            lambda: len(list(log.glob("*.json"))) >= 4 or process.poll() is not None,
            deadline_s=5 * DEADLINE_S,
        )
        assert process.poll() is None, output.read_text()
    finally:
        # The driver and its JVM, and nothing else: they have a session of their own.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
    rows = spark.read.format("delta").load(str(tmp_path / topic))
    done = len(offsets_in(rows))
    assert 0 < done < 10_000
    archive_once(spark, broker, topic, tmp_path)
    rows = spark.read.format("delta").load(str(tmp_path / topic))
    assert offsets_in(rows) == all_offsets(5000, 5000)
    assert set(values_in(rows)) == {record.value for record in numbered(topic, 0, 5000)}


def test_a_second_archive_of_the_same_topic_commits_nothing(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    produce(broker.bootstrap, topic, 0, numbered(topic, 0, 100))
    options = ArchiveOptions(root=str(tmp_path), broker=broker_options(broker.bootstrap), batch_records=60)
    first = TopicArchive(spark, topic, options)
    second = TopicArchive(spark, topic, replace(options, batch_records=30))
    with options.broker.client() as client:
        first.open(client)
        second.open(client)
        bounds = first.ends(client)
        assert first.step(bounds) is not None
        with pytest.raises(ConcurrentArchive, match="this one has committed nothing"):
            second.step(bounds)
        assert first.step(bounds) is not None
    assert offsets_in(first.table.read()) == all_offsets(100)
    # What we read of the log ourselves is what Spark, which is asked about object stores, says of it.
    assert first.table._history(10) == first.table._history_by_spark(10)


def test_an_archive_goes_on_and_on_until_it_is_stopped(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    produce(broker.bootstrap, topic, 0, numbered(topic, 0, 10))

    class Producing(Listener):
        @override
        def stepped(self, topic: str, step: Step) -> None:
            super().stepped(topic, step)
            if len(self.steps) == 3:
                self.stop.set()
            else:
                produce(broker.bootstrap, topic, 1, numbered(topic, 0, 10))

    listener = Producing()
    run = ArchiveRun(
        spark=spark,
        topics=[topic],
        options=ArchiveOptions(root=str(tmp_path), broker=broker_options(broker.bootstrap)),
        upkeep=Upkeep(compact_after=2, vacuum_hours=None),
        reporter=listener,
        stop=listener.stop,
        today=lambda: TODAY,
    )
    run.forever(0.01)
    table = ArchiveTable(spark, str(tmp_path), topic)
    assert offsets_in(table.read()) == all_offsets(10, 20)
    assert listener.failures == []
    assert listener.done, "small files were not joined"


def test_archive_and_topic_are_one_table_while_both_ends_move(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    for partition in (0, 1):
        produce(broker.bootstrap, topic, partition, numbered(topic, 0, 300))
    archive_once(spark, broker, topic, tmp_path, batch_records=250)
    options = {"archive": str(tmp_path), "subscribe": topic, "bootstrap.servers": broker.bootstrap}
    # The head of the topic goes, as by retention, and its end grows while it is read.
    delete_before(broker.bootstrap, topic, 0, 250)
    delete_before(broker.bootstrap, topic, 1, 300)
    with _written_all_the_time(broker, topic):
        both = read_with_archive(spark, {**options, "includeHeaders": "true"})
        by_source = spark.read.format("millrace").options(**options).load()
        for rows in (both, by_source):
            found = offsets_in(rows)
            counts = [sum(each[0] == partition for each in found) for partition in (0, 1)]
            assert counts[0] >= 300
            assert found == all_offsets(*counts), "a gap or an overlap"
    assert set(both.columns) == {*by_source.columns, "headers"}
    assert values_in(by_source.where("partition = 1 AND offset < 300")) == [
        record.value for record in numbered(topic, 0, 300)
    ]
    archive_once(spark, broker, topic, tmp_path)
    assert offsets_in(spark.read.format("millrace").options(**options).load()) == offsets_in(
        ArchiveTable(spark, str(tmp_path), topic).read()
    )


@contextmanager
def _written_all_the_time(broker: MillraceProcess, topic: str) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        number = 300
        while not stop.is_set():
            produce(broker.bootstrap, topic, 0, numbered(topic, number, number + 20))
            number += 20

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)


def test_records_that_are_nowhere_any_more_are_an_error_not_a_gap(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    produce(broker.bootstrap, topic, 0, numbered(topic, 0, 100))
    archive_once(spark, broker, topic, tmp_path)
    produce(broker.bootstrap, topic, 0, numbered(topic, 100, 200))
    delete_before(broker.bootstrap, topic, 0, 150)
    options = {"archive": str(tmp_path), "subscribe": topic, "bootstrap.servers": broker.bootstrap}
    with pytest.raises(RecordsLost, match=f"offsets 100 to 149 of {topic}-0 are neither"):
        read_with_archive(spark, options)
    source = spark.read.format("millrace").options(**options)
    with pytest.raises(Exception, match=f"{topic}-0: offsets 100 to 149 are gone"):
        source.load().collect()
    with pytest.raises(Exception, match="endingTimestamp does not go with archive"):
        source.option("endingTimestamp", "1").load().collect()
    with pytest.raises(RecordsLost, match="left the topic before they were archived"):
        archive_once(spark, broker, topic, tmp_path)
    listener = archive_once(spark, broker, topic, tmp_path, allow_gaps=True)
    assert listener.steps[0].lost == {0: (100, 150)}
    rows = ArchiveTable(spark, str(tmp_path), topic).read()
    assert offsets_in(rows) == [(0, offset) for offset in (*range(100), *range(150, 200))]


def test_values_are_decoded_where_a_schema_is_given_and_kept_where_they_do_not_fit(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    values = [b'{"id": 1, "name": "one"}', b"no JSON", None]
    produce(broker.bootstrap, topic, 0, [Record(None, value, (), NOON_MS) for value in values])
    decode = make_decoder("json", "id BIGINT, name STRING", None)
    archive_once(spark, broker, topic, tmp_path, decode=decode)
    produce(broker.bootstrap, topic, 0, numbered(topic, 3, 5))
    archive_once(spark, broker, topic, tmp_path)
    table = ArchiveTable(spark, str(tmp_path), topic)
    rows = table.read().orderBy("offset").select("value", "decoded.*", "decodeError").collect()
    assert [None if row[0] is None else bytes(row[0]) for row in rows[:3]] == values
    assert [(row[1], row[2]) for row in rows] == [(1, "one"), *[(None, None)] * 4]
    assert [row[3] is None for row in rows] == [True, False, True, True, True]
    assert ArchivedTopic(str(tmp_path), topic).next == {0: 5, 1: 0}


def test_upkeep_joins_files_drops_days_and_removes_what_nobody_needs(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    old = NOON_MS - 40 * DAY_MS
    produce(broker.bootstrap, topic, 0, numbered(topic, 0, 100, timestamp_ms=old))
    produce(broker.bootstrap, topic, 0, numbered(topic, 100, 400))
    archive_once(spark, broker, topic, tmp_path, batch_records=100)
    folder = tmp_path / topic
    files = len(list(folder.glob("date=*/*.parquet"))) + 1  # with the one that the others are joined into
    assert files > 4
    upkeep = Upkeep(compact_after=4, retention_days=30, vacuum_hours=0)
    table = ArchiveTable(spark, str(tmp_path), topic)
    done = maintain(spark, table, table.state().ledger, upkeep, today=TODAY)
    assert done.files_joined >= 3
    # Those of the dropped day and those that were joined: a removal is counted, not only claimed.
    assert done.files_removed == files - 1
    assert f"{files - 1} files that no version needs removed" in done.describe()
    assert len(list(folder.glob("date=*/*.parquet"))) == 1
    kept = replace(upkeep, vacuum_hours=1)
    again = maintain(spark, table, table.state().ledger, kept, today=TODAY, force=True)
    assert (again.files_removed, again.describe()) == (0, "no file is old enough to be removed")
    assert [(0, offset) for offset in range(100, 400)] == offsets_in(table.read())
    assert table.state().ledger.next == {0: 400, 1: 0}
    # What was dropped stays dropped, and the archive goes on behind it.
    produce(broker.bootstrap, topic, 0, numbered(topic, 400, 410))
    archive_once(spark, broker, topic, tmp_path, upkeep)
    options = {"archive": str(tmp_path), "subscribe": topic, "bootstrap.servers": broker.bootstrap}
    by_source = spark.read.format("millrace").options(**options).load()
    assert [(0, offset) for offset in range(100, 410)] == offsets_in(by_source)
    assert not list(folder.glob(f"date={date(2026, 1, 31) - timedelta(days=40)}/*.parquet"))


def test_a_topic_made_anew_is_not_mixed_with_its_archive(
    spark: SparkSession, broker: MillraceProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    name = make_topic(stem="reborn")
    produce(broker.bootstrap, name, 0, numbered(name, 0, 10))
    archive_once(spark, broker, name, tmp_path)
    admin = admin_client(broker.bootstrap)
    admin.delete_topics([name])[name].result(DEADLINE_S)
    eventually(lambda: _is_made(broker.bootstrap, name), deadline_s=DEADLINE_S)
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        archive_once(spark, broker, name, tmp_path)
    options = {"archive": str(tmp_path), "subscribe": name, "bootstrap.servers": broker.bootstrap}
    with pytest.raises(TopicRecreated):
        read_with_archive(spark, options)


def _is_made(bootstrap: str, name: str) -> bool:
    try:
        create_topic(bootstrap, name, 1)
    except KafkaException:  # the old one is still being deleted
        return False
    return True


def test_mistakes_get_clear_messages(
    spark: SparkSession, broker: MillraceProcess, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="there is no topic absent"):
        archive_once(spark, broker, "absent", tmp_path)
    options = {"archive": str(tmp_path), "subscribe": topic, "bootstrap.servers": broker.bootstrap}
    with pytest.raises(NoArchive, match=f"no archive of topic {topic} at {tmp_path}"):
        read_with_archive(spark, options)
    with pytest.raises(InvalidOption, match="knows no option startingOffsets"):
        read_with_archive(spark, {**options, "startingOffsets": "latest"})
    spark.range(1).write.format("delta").save(str(tmp_path / topic))
    with pytest.raises(PipelineError, match="no archive of topic"):
        archive_once(spark, broker, topic, tmp_path)


def test_the_commands_archive_replay_and_join(
    spark: SparkSession,
    broker: MillraceProcess,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def session(_options: object, _name: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline_lake, "_session", session)
    for partition in (0, 1):
        produce(broker.bootstrap, topic, partition, numbered(topic, 0, 50))
    address = ["-b", broker.bootstrap]
    runner = CliRunner()
    answer = runner.invoke(
        pipeline_lake.archive, [topic, "--to", str(tmp_path), "--once", *address], catch_exceptions=False
    )
    assert f"{topic}: 100 offsets archived in 1 commits" in answer.stderr
    produce(broker.bootstrap, topic, 1, numbered(topic, 50, 60))
    words = [topic, "--archive", str(tmp_path), *address]
    answer = runner.invoke(pipeline_lake.backfill, words, catch_exceptions=False)
    cells = [line.split() for line in answer.stdout.splitlines()[1:]]
    assert cells == [["0", "0", "50", "50"], ["1", "0", "50", "50", "60", "60"]]
    query = ["--sql", "SELECT partition, count(*) AS n FROM records GROUP BY 1 ORDER BY 1"]
    answer = runner.invoke(pipeline_lake.backfill, [*words, *query, "--json"], catch_exceptions=False)
    assert answer.stdout.splitlines() == ['{"partition":0,"n":50}', '{"partition":1,"n":60}']
    answer = runner.invoke(
        pipeline_lake.replay, [*words, "--into", f"{topic}-back", "--json"], catch_exceptions=False
    )
    assert answer.exit_code == 0
    assert answer.stdout.count('"same":true') == 2
    answer = runner.invoke(
        pipeline_lake.replay, [*words, "--into", f"{topic}-back", "--dry-run"], catch_exceptions=False
    )
    assert [line.split()[-2:] for line in answer.stdout.splitlines()[1:]] == [["50", "0"], ["50", "0"]]
