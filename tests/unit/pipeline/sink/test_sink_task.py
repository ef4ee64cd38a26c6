from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from millrace.client.errors import InvalidOption
from millrace.pipeline.sink.commit import Job
from millrace.pipeline.sink.data_sink import _write_task, make_stream_writer, make_writer
from millrace.pipeline.sink.options import read_sink_options
from millrace.pipeline.sink.rows import RowRouter, pieces

OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "topic": "orders"}


class FakeContext:
    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


def test_speculation_is_refused_before_anything_is_written() -> None:
    context = cast("TaskContext", FakeContext(**{"spark.speculation": "true"}))
    options = read_sink_options(OPTIONS, is_streaming=True)
    with pytest.raises(InvalidOption, match=r"spark\.speculation=true: two attempts of one task"):
        _write_task(options, Job("query", 0, is_marked=True), context, iter([]))


def test_a_batch_write_without_a_name_has_one_of_its_own() -> None:
    schema = StructType([StructField("value", BinaryType())])
    first, second = (make_writer(schema, OPTIONS, overwrite=False) for _ in range(2))
    assert first._job.name != second._job.name
    assert not first._job.is_marked
    named = make_writer(schema, {**OPTIONS, "txnAppId": "a", "txnVersion": "3"}, overwrite=False)
    assert (named._job.name, named._job.epoch, named._job.is_marked) == ("a", 3, True)
    # The output mode complete appends the whole result, as Spark's Kafka sink does.
    make_stream_writer(schema, OPTIONS, overwrite=True)


def batch(count: int, size: int = 1000) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * size] * count, pa.binary())})


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    found = [piece.num_rows for piece in pieces([batch(2), batch(0), batch(3), batch(30), batch(1)], 10_000)]
    assert sum(found) == 36
    assert found[0] == 5
    assert max(found) <= 10
    assert found[-1] == 1


def test_rows_without_a_key_fill_one_partition_after_the_other() -> None:
    options = read_sink_options({**OPTIONS, "batch.size": "10000"}, is_streaming=True)
    router = RowRouter(options, lambda _topic: 3, first_turn=1)
    found = [(each.partition.partition, each.record_count) for each in router.encode(batch(30))]
    assert sum(count for _, count in found) == 30
    assert {partition for partition, _ in found} == {0, 1, 2}
    assert all(count >= 5 for _, count in found)
