"""How the tasks of a write become visible together, and how a write that is repeated is recognised.

Tasks leave their transactions open; the driver commits them all when the last task is done. Each
transaction holds a marker beside its records: a committed offset, epoch + 1, of a group named like the
transactional id. A task whose marker is there already has been committed before, and is left out.
Before the first commit of an epoch the driver writes down how many tasks there are, in a marker of the job's
own: if some of them were committed and the epoch is repeated with another number of tasks, rows would be lost
or doubled, so that is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.client.broker_client import BrokerClient
from millrace.client.errors import ClientError
from millrace.client.topic_creation import NewTopics, create_topic, find_or_create
from millrace.client.transactional import (
    Marker,
    ProducerIdentity,
    end_transaction,
    init_producer,
    read_marker,
)
from millrace.core.ids import TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.sink.options import SinkOptions


class StaleEpoch(PipelineError):
    """A later epoch of the same job has been written already."""

    def __init__(self, job: str, epoch: int, written: int) -> None:
        super().__init__(
            f"epoch {epoch} of {job} is to be written, but epoch {written} is there already: the checkpoint "
            "is older than what was written, or two queries share it; give each query a checkpoint of its own"
        )


class TasksChanged(PipelineError):
    """An epoch that was written in part comes again with another number of tasks."""

    def __init__(self, job: str, epoch: int, before: int, now: int) -> None:
        super().__init__(
            f"epoch {epoch} of {job} was written in part by {before} tasks and is repeated with {now}: rows "
            f"would be lost or doubled; run it with {before} partitions as before, then change the number"
        )


class RowsChanged(PipelineError):
    """A task that was committed comes again with another number of rows."""

    def __init__(self, task: str, epoch: int, before: int, now: int) -> None:
        super().__init__(
            f"epoch {epoch} of task {task} was committed with {before} rows and is repeated with {now}: the "
            "query does not give the same rows to the same task again, so it cannot be written exactly once"
        )


class MarkersMissing(PipelineError):
    """A stream goes on, but no marker says what it has written before."""

    def __init__(self, job: str, epoch: int, place: TopicPartition) -> None:
        super().__init__(
            f"epoch {epoch} of {job}: nothing is known of the epochs before. Either the markers at {place} "
            "are older than the broker's offsets.retention.minutes, or the query ran with another sink or "
            "marker topic. If records twice do no harm, set missingMarkers=accept for one run"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One write: an epoch of a query, a version of an application, or a batch write of its own."""

    name: str
    epoch: int
    is_marked: bool
    """Whether it may be repeated, and markers keep it from being written twice."""
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What a task has done: an open transaction, or nothing that needs a commit."""

    task: int
    records: int
    identity: ProducerIdentity | None
    is_repeated: bool = False
    """It was committed before, and nothing has been written now."""


def task_id(options: SinkOptions, job: Job, task: int) -> str:
    """The transactional id of a task, and the group that holds its marker."""
    return f"{options.id_prefix}-{job.name}-{task}"


def job_group(options: SinkOptions, job: Job) -> str:
    return f"{options.id_prefix}-{job.name}-job"


def marker_place(options: SinkOptions) -> TopicPartition:
    return TopicPartition(options.marker_topic, 0)


def ensure_marker_topic(client: BrokerClient, options: SinkOptions) -> None:
    """Make the topic for markers, which may be the target: offsets belong to partitions that exist."""
    name = options.marker_topic
    if name == options.topic:
        find_or_create(client, name, options.new_topics)
    elif not client.metadata([name]):
        create_topic(client, name, NewTopics(partitions=1), may_exist=True)


def is_written(client: BrokerClient, options: SinkOptions, job: Job, task: int) -> int | None:
    """How many rows the task has committed for this epoch before; None if it has not."""
    name = task_id(options, job, task)
    marker = read_marker(client, name, marker_place(options))
    if marker is None or marker.offset <= job.epoch:
        return None
    if marker.offset > job.epoch + 1:
        raise StaleEpoch(job.name, job.epoch, marker.offset - 1)
    return _noted(marker, "rows")


def task_marker(job: Job, records: int) -> Marker:
    return Marker(job.epoch + 1, json.dumps({"rows": records}))


def commit_job(client: BrokerClient, options: SinkOptions, job: Job, outcomes: Sequence[TaskOutcome]) -> None:
    """Commit what all tasks have written, in the order of the tasks."""
    if job.is_marked:
        _announce(client, options, job, outcomes)
    for outcome in outcomes:
        if outcome.identity is not None:
            end_transaction(client, outcome.identity, is_commit=True)


def abort_job(
    client: BrokerClient, options: SinkOptions, job: Job, outcomes: Sequence[TaskOutcome | None]
) -> None:
    """Abort what is open, and fence tasks without an outcome, since they may still be running.

    What was committed stays: Spark also aborts a job whose commit failed half-way.
    """
    for task, outcome in enumerate(outcomes):
        try:
            if outcome is None:
                init_producer(client, task_id(options, job, task), options.transaction_timeout_ms)
            elif outcome.identity is not None:
                end_transaction(client, outcome.identity, is_commit=False)
        except ClientError:
            # The next attempt or the transaction's time-out does the same; the first error is what counts.
            continue


def _announce(client: BrokerClient, options: SinkOptions, job: Job, outcomes: Sequence[TaskOutcome]) -> None:
    """Write down how many tasks there are, unless a different number has been committed in part."""
    group, place = job_group(options, job), marker_place(options)
    known = read_marker(client, group, place)
    if known is None:
        is_first = job.epoch == 0 or not job.is_stream or any(outcome.is_repeated for outcome in outcomes)
        if not is_first and not options.accept_missing_markers:
            raise MarkersMissing(job.name, job.epoch, place)
    elif known.offset > job.epoch + 1:
        raise StaleEpoch(job.name, job.epoch, known.offset - 1)
    elif known.offset == job.epoch + 1:
        before = _noted(known, "tasks")
        if before != len(outcomes) and _is_partly_committed(client, options, job, outcomes, before):
            raise TasksChanged(job.name, job.epoch, before, len(outcomes))
    client.commit(group, {place: job.epoch + 1}, metadata=json.dumps({"tasks": len(outcomes)}))


def _is_partly_committed(
    client: BrokerClient, options: SinkOptions, job: Job, outcomes: Sequence[TaskOutcome], before: int
) -> bool:
    if any(outcome.is_repeated for outcome in outcomes):
        return True
    for task in range(max(before, len(outcomes))):
        name = task_id(options, job, task)
        is_ours = task < len(outcomes)
        if not is_ours:
            # An earlier driver may be about to commit it: from here on it cannot.
            init_producer(client, name, options.transaction_timeout_ms)
        # Our own tasks hold the next marker in a transaction that nobody but us will end.
        marker = read_marker(client, name, marker_place(options), is_stable=not is_ours)
        if marker is not None and marker.offset > job.epoch:
            return True
    return False


def _noted(marker: Marker, name: str) -> int:
    """A number from the note beside a marker; -1 if somebody else wrote it."""
    try:
        number = json.loads(marker.note)[name]
    except (ValueError, KeyError, TypeError):
        return -1
    return number if isinstance(number, int) else -1
