"""`df.write` and `writeStream` into topics: the writers of the data source `millrace`.

Exactly once by default: each task writes in a transaction of its own, and the driver commits them all when
every task is done (see `sink.commit`). With `delivery=at_least_once` a task's records are visible as they
come, and those of a repeated task are there twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.client.broker_client import BrokerClient
from millrace.client.errors import InvalidOption
from millrace.client.transactional import ProducerIdentity, TaskProducer, init_producer
from millrace.core.override import override
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.sink.commit import (
    Job,
    RowsChanged,
    TaskOutcome,
    abort_job,
    commit_job,
    ensure_marker_topic,
    is_written,
    marker_place,
    task_id,
    task_marker,
)
from millrace.pipeline.sink.options import SinkOptions, check_columns, read_sink_options
from millrace.pipeline.sink.rows import RowRouter, pieces
from millrace.pipeline.spark.missing_package import Announced

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_EPOCH: Final = "streaming.sql.batchId"
_SPECULATION: Final = "spark.speculation"
_ABORT_TIMEOUT_MS: Final = 15_000
"""Aborting is a courtesy: it must not hold up a query that has failed already."""


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    job: Job
    outcome: TaskOutcome


def make_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """The writer for `df.write`; raises InvalidOption for all that can be known to be wrong at this point."""
    if overwrite:
        raise InvalidOption("mode overwrite: a topic can only be appended to; use .mode('append')")
    read = read_sink_options(options, is_streaming=False)
    check_columns(schema, read)
    if read.app_id is not None:
        job = Job(name=read.app_id, epoch=read.app_version, is_marked=True)
    else:
        job = Job(name=uuid.uuid4().hex, epoch=0, is_marked=False)
    return BatchWriter(read, job)


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """The writer for `writeStream`; `overwrite` (output mode complete) appends the whole result each time."""
    del overwrite
    read = read_sink_options(options, is_streaming=True)
    check_columns(schema, read)
    return StreamWriter(read)


class BatchWriter(DataSourceArrowWriter, metaclass=Announced):
    """Writes the rows of `df.write`: Spark sends a copy to each task, and commits or aborts on the driver."""

    def __init__(self, options: SinkOptions, job: Job) -> None:
        self._options = options
        self._job = job

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return _write_task(self._options, self._job, _context(), iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._job, messages)


class StreamWriter(DataSourceStreamArrowWriter, metaclass=Announced):
    """Writes the rows of `writeStream`: one job for each epoch of the query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = _context()
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_EPOCH)
        if query is None or epoch is None:
            raise PipelineError(f"Spark names no query and epoch for this task ({_QUERY_ID}, {_EPOCH})")
        job = Job(name=query, epoch=int(epoch), is_marked=True, is_stream=True)
        return _write_task(self._options, job, context, iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, messages)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # Only tasks know the query's id; if none has come to its end, the next attempt aborts what is open.
        _abort(self._options, next((each.job for each in _found(messages)), None), messages)


def _write_task(
    options: SinkOptions, job: Job, context: TaskContext, batches: Iterator[pa.RecordBatch]
) -> TaskMessage:
    task = context.partitionId()
    if options.is_exactly_once and context.getLocalProperty(_SPECULATION) == "true":
        raise InvalidOption(
            "spark.speculation=true: two attempts of one task would take its transaction from each other; "
            "set it to false, or use delivery=at_least_once"
        )
    with _client(options) as client:
        if options.is_exactly_once:
            outcome = _write_exactly_once(client, options, job, task, batches)
        else:
            identity = init_producer(client, None, options.transaction_timeout_ms)
            producer = _producer(client, identity, options)
            records = _write_rows(producer, options, job.epoch + task, batches)
            outcome = TaskOutcome(task, records, None)
    return TaskMessage(job, outcome)


def _write_exactly_once(
    client: BrokerClient, options: SinkOptions, job: Job, task: int, batches: Iterator[pa.RecordBatch]
) -> TaskOutcome:
    name = task_id(options, job, task)
    # We do this first, even for a task without rows: an earlier attempt of this task can then commit no more.
    identity = init_producer(client, name, options.transaction_timeout_ms)
    if job.is_marked:
        ensure_marker_topic(client, options)
        written = is_written(client, options, job, task)
        if written is not None:
            repeated = sum(batch.num_rows for batch in batches)
            if repeated != written:
                raise RowsChanged(name, job.epoch, written, repeated)
            return TaskOutcome(task, repeated, None, is_repeated=True)
    producer = _producer(client, identity, options)
    try:
        records = _write_rows(producer, options, job.epoch + task, batches)
        if records and job.is_marked:
            producer.mark(name, marker_place(options), task_marker(job, records))
    except BaseException:
        producer.abort()
        raise
    return TaskOutcome(task, records, identity if producer.is_open else None)


def _producer(client: BrokerClient, identity: ProducerIdentity, options: SinkOptions) -> TaskProducer:
    return TaskProducer(
        client, identity, timeout_ms=options.transaction_timeout_ms, new_topics=options.new_topics
    )


def _write_rows(
    producer: TaskProducer, options: SinkOptions, first_turn: int, batches: Iterator[pa.RecordBatch]
) -> int:
    router = RowRouter(options, producer.partition_count, first_turn=first_turn)
    records = 0
    for piece in pieces(batches, options.buffer_bytes):
        producer.produce(router.encode(piece))
        records += piece.num_rows
    return records


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    found = _found(messages)
    if not found or not options.is_exactly_once:
        return
    with _client(options) as client:
        # If this fails, Spark calls `abort`.
        commit_job(client, options, found[0].job, [each.outcome for each in found])


def _abort(options: SinkOptions, job: Job | None, messages: Sequence[WriterCommitMessage | None]) -> None:
    if job is None or not options.is_exactly_once:
        return
    outcomes = [each.outcome if isinstance(each, TaskMessage) else None for each in messages]
    with _client(options, timeout_ms=min(_ABORT_TIMEOUT_MS, options.delivery_timeout_ms)) as client:
        abort_job(client, options, job, outcomes)


def _found(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [each for each in messages if isinstance(each, TaskMessage)]


def _client(options: SinkOptions, timeout_ms: int | None = None) -> BrokerClient:
    return BrokerClient(
        options.bootstrap,
        client_id=options.client_id,
        security=options.security,
        timeout_ms=options.delivery_timeout_ms if timeout_ms is None else timeout_ms,
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PipelineError("rows are written by Spark's tasks only")
    return context
