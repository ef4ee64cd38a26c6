"""Archive and replay: a topic comes back byte for byte, whole or in part, however often it is interrupted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from millrace.client.transactional import Fenced, TaskProducer, init_producer
from millrace.core.ids import TopicPartition
from millrace.pipeline.lake.archive import ArchiveOptions, TopicArchive
from millrace.pipeline.lake.errors import ReplayError
from millrace.pipeline.lake.ranges import parse_selection
from millrace.pipeline.lake.replay import Replay, ReplayOptions
from millrace.pipeline.lake.replay_task import ReplayTask, sender
from millrace.pipeline.lake.topics import BrokerOptions
from millrace.pipeline.records.encoder import Columns, encode
from millrace.wire.batch_header import CONTROL_BIT
from millrace.wire.compression import Codec
from tests.harness.batches import codec_of, headers_of
from tests.harness.millrace import MillraceProcess
from tests.harness.protocol import fetch_records
from tests.harness.raw import RawConnection
from tests.harness.topics import create_topic, unique_name
from tests.pipeline.lake_support import (
    DAY_MS,
    NOON_MS,
    Record,
    broker_options,
    consume,
    ends,
    numbered,
    produce,
    records_of,
    send,
    transactional,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PARTITIONS: Final = 3


@dataclass(frozen=True)
class Archived:
    """A topic with one of everything, and its archive."""

    topic: str
    root: str
    broker: BrokerOptions
    written: dict[int, list[tuple[int, Record]]]

    def options(self, into: str, **changes: object) -> ReplayOptions:
        base = ReplayOptions(
            root=self.root,
            topic=self.topic,
            into=into,
            broker=self.broker,
            portion_records=700,
            transaction_records=100,
        )
        return replace(base, **changes)  # type: ignore[arg-type]  # each test's own field

    @property
    def records(self) -> dict[int, list[Record]]:
        return records_of(self.written)


@pytest.fixture(scope="module")
def archived(
    spark: SparkSession, broker: MillraceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Archived:
    topic = create_topic(broker.bootstrap, unique_name("everything"), PARTITIONS)
    write_one_of_everything(broker.bootstrap, topic)
    root = str(tmp_path_factory.mktemp("archive"))
    options = broker_options(broker.bootstrap)
    archive = TopicArchive(spark, topic, ArchiveOptions(root=root, broker=options, batch_records=600))
    with options.client() as client:
        archive.open(client)
        bounds = archive.ends(client)
        steps = 0
        while archive.step(bounds) is not None:
            steps += 1
    assert steps > 1, "one commit alone shows little"
    return Archived(topic, root, options, consume(broker.bootstrap, topic, PARTITIONS))


def write_one_of_everything(bootstrap: str, topic: str) -> None:
    """All compressions, headers, nulls, empties, old and odd timestamps, transactions and gaps."""
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        for partition in range(PARTITIONS):
            start = number * 100
            day = NOON_MS - number * DAY_MS
            produce(
                bootstrap,
                topic,
                partition,
                numbered(topic, start, start + 100, timestamp_ms=day),
                codec=codec,
            )
    odd = [
        Record(None, None, (), NOON_MS),
        Record(b"tombstone", None, (), NOON_MS + 1),
        Record(
            None, b"no key", (("h", b"1"), ("h", b"2"), ("none", None), ("", b"")), NOON_MS - 400 * DAY_MS
        ),
        Record(b"", b"", (("empty", b""),), NOON_MS + 5),
        Record(bytes(range(256)), bytes(range(256)) * 50, (("äöü", bytes(range(256))),), NOON_MS - 5),
    ]
    produce(bootstrap, topic, 0, odd, codec="gzip")
    produce(bootstrap, topic, 2, [record for record in odd for _ in range(3)])
    producer = transactional(bootstrap, f"{topic}-writer")
    for number, is_kept in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for partition in (0, 1):
            send(producer, topic, partition, numbered(topic, 1000 + number * 10, 1010 + number * 10))
        producer.flush(60)
        producer.commit_transaction(60) if is_kept else producer.abort_transaction(60)
    write_at_the_beginning_of_time(bootstrap, topic)
    ends(bootstrap, topic, PARTITIONS)


def write_at_the_beginning_of_time(bootstrap: str, topic: str) -> None:
    """A record of 1970, which librdkafka cannot write: to it, 0 means now."""
    import numpy as np
    import pyarrow as pa

    columns = Columns(
        key=None,
        value=pa.array([topic.encode()]),
        headers=None,
        timestamps=np.zeros(1, np.int64),
    )
    batches = encode(columns, np.zeros(1, np.int64), [TopicPartition(topic, 1)], batch_bytes_max=1000)
    with broker_options(bootstrap).client() as client:
        TaskProducer(client, init_producer(client, None, 60_000), timeout_ms=60_000).produce(batches)


def test_the_archive_holds_every_record_at_its_offset(spark: SparkSession, archived: Archived) -> None:
    rows = spark.read.format("delta").load(f"{archived.root}/{archived.topic}").collect()
    found: dict[int, list[tuple[int, Record]]] = {number: [] for number in range(PARTITIONS)}
    for row in sorted(rows, key=lambda each: (each["partition"], each["offset"])):
        headers = tuple((each["key"], _bytes(each["value"])) for each in row["headers"] or ())
        timestamp_ms = round(row["timestamp"].timestamp() * 1000)
        record = Record(_bytes(row["key"]), _bytes(row["value"]), headers, timestamp_ms)
        found[row["partition"]].append((row["offset"], record))
        assert row["topic"] == archived.topic
    assert found == archived.written


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def test_a_replay_takes_no_more_room_than_the_compressed_topic_took(
    spark: SparkSession, broker: MillraceProcess, tmp_path: Path
) -> None:
    """Of records as users have them; plain, these would take five times the room."""
    topic, into = create_topic(broker.bootstrap, unique_name("orders"), 1), unique_name("restored")
    chance = random.Random(1)
    orders = [
        {"order_id": number, "customer": chance.randrange(5_000), "cents": chance.randrange(90_000)}
        for number in range(20_000)
    ]
    records = [
        Record(None, json.dumps(each | {"currency": "EUR", "state": "paid"}).encode(), (), NOON_MS + number)
        for number, each in enumerate(orders)
    ]
    produce(broker.bootstrap, topic, 0, records, codec="zstd")
    options = broker_options(broker.bootstrap)
    archive = TopicArchive(spark, topic, ArchiveOptions(root=str(tmp_path), broker=options))
    with options.client() as client:
        archive.open(client)
        bounds = archive.ends(client)
        while archive.step(bounds) is not None:
            pass
    replay = Replay(spark, ReplayOptions(root=str(tmp_path), topic=topic, into=into, broker=options))
    assert replay.run(replay.prepare(), lambda _: None) == len(records)

    def stored(name: str) -> int:
        return sum(path.stat().st_size for path in broker.data_dir.glob(f"{name}-0/*.log"))

    plain = sum(len(record.value or b"") for record in records)
    assert 0 < stored(into) <= 1.2 * stored(topic) < plain / 3


def test_a_topic_comes_back_byte_for_byte_and_only_once(
    spark: SparkSession, broker: MillraceProcess, archived: Archived
) -> None:
    into = unique_name("recovered")
    replay = Replay(spark, archived.options(into, codec=Codec.LZ4))
    plan = replay.prepare()
    assert plan.is_created
    assert replay.run(plan, lambda _: None) == sum(map(len, archived.records.values()))
    assert records_of(consume(broker.bootstrap, into, PARTITIONS)) == archived.records
    with RawConnection((broker.host, broker.port)) as connection:
        headers = headers_of(fetch_records(connection, into, 0, 0))
    # The last one is the marker of the transaction.
    assert {codec_of(header) for header in headers if not header[5] & CONTROL_BIT} == {Codec.LZ4}
    assert all(each.is_same for each in replay.verify(plan))

    again = Replay(spark, archived.options(into))
    plan = again.prepare()
    assert (plan.is_created, plan.records_left) == (False, 0)
    assert again.run(plan, lambda _: None) == 0
    assert records_of(consume(broker.bootstrap, into, PARTITIONS)) == archived.records

    produce(broker.bootstrap, into, 1, [Record(b"somebody", b"else", (), NOON_MS)])
    assert [each.partition for each in again.verify(plan) if not each.is_same] == [1]


def test_a_topic_comes_back_as_it_was_at_a_point_in_time(
    spark: SparkSession, broker: MillraceProcess, archived: Archived
) -> None:
    into = unique_name("yesterday")
    moment = NOON_MS - DAY_MS - 1
    selection = parse_selection("beginning", "2026-01-30T11:59:59.999Z")
    replay = Replay(spark, archived.options(into, selection=selection))
    plan = replay.prepare()
    replay.run(plan, lambda _: None)
    wanted = {
        partition: [record for record in records if record.timestamp_ms < moment]
        for partition, records in archived.records.items()
    }
    assert records_of(consume(broker.bootstrap, into, PARTITIONS)) == wanted
    assert all(each.is_same for each in replay.verify(plan))


def test_an_interrupted_replay_between_offsets_goes_on_without_repeating(
    spark: SparkSession, broker: MillraceProcess, archived: Archived
) -> None:
    into = create_topic(broker.bootstrap, unique_name("target"), PARTITIONS + 1)
    produce(broker.bootstrap, into, 0, numbered(into, 0, 5))
    options = archived.options(into, selection=parse_selection("100", "0:480,1:480"), portion_records=300)
    replay = Replay(spark, options)
    first_plan = replay.prepare()

    def die(_count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.run(first_plan, die)
    second = Replay(spark, options)
    plan = second.prepare()
    assert 0 < plan.records_left < plan.records == 2 * 380
    second.run(plan, lambda _: None)
    wanted = {
        partition: [record for offset, record in rows if 100 <= offset < 480 and partition < 2]
        for partition, rows in archived.written.items()
    }
    found = records_of(consume(broker.bootstrap, into, PARTITIONS + 1))
    assert found == {**wanted, 0: numbered(into, 0, 5) + wanted[0], PARTITIONS: []}
    assert all(each.is_same for each in second.verify(plan))


def test_a_task_that_dies_is_continued_and_a_late_one_is_fenced(
    broker: MillraceProcess, archived: Archived
) -> None:
    """Without Spark in between: attempts of one task, as Spark would start them."""
    into = create_topic(broker.bootstrap, unique_name("attempts"), 1)
    task = ReplayTask(broker=archived.broker, group=into, target=into, transaction_records=50)
    batches = [_rows(numbered(into, start, start + 40), start) for start in range(0, 400, 40)]

    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches[:6]
        raise OSError("the executor is gone")

    with pytest.raises(OSError, match="executor"):
        list(sender(task)(dying()))
    # Inside a transaction, which the rival takes away.
    with pytest.raises(Fenced, match="taken away"):
        list(sender(task)(_with_rival(task, batches, 7)))
    assert records_of(consume(broker.bootstrap, into, 1)) == {0: numbered(into, 0, 400)}


def test_a_late_task_passes_over_what_another_attempt_has_sent(
    broker: MillraceProcess, archived: Archived
) -> None:
    into = create_topic(broker.bootstrap, unique_name("attempts"), 1)
    task = ReplayTask(broker=archived.broker, group=into, target=into, transaction_records=50)
    batches = [_rows(numbered(into, start, start + 40), start) for start in range(0, 400, 40)]
    # Between two transactions, of 80 records each.
    (result,) = sender(task)(_with_rival(task, batches, 4))
    assert result.to_pylist() == [{"partition": 0, "sent": 160, "next": 400}]
    assert records_of(consume(broker.bootstrap, into, 1)) == {0: numbered(into, 0, 400)}


def _with_rival(task: ReplayTask, batches: list[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    """After some batches another attempt does all the work."""
    yield from batches[:after]
    list(sender(task)(iter(batches)))
    yield from batches[after:]


def _rows(records: list[Record], offset: int) -> pa.RecordBatch:
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array(range(offset, offset + len(records)), pa.int64()),
            "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array([[] for _ in records], headers),
        }
    )


def test_a_target_with_too_few_partitions_is_refused(
    spark: SparkSession, broker: MillraceProcess, archived: Archived
) -> None:
    narrow = create_topic(broker.bootstrap, unique_name("narrow"), 1)
    with pytest.raises(ReplayError, match=f"topic {narrow} has 1 partitions, the archive of .* has 3"):
        Replay(spark, archived.options(narrow)).prepare()
    with pytest.raises(ReplayError, match="there is no topic"):
        Replay(spark, archived.options("absent", create=False)).prepare()
