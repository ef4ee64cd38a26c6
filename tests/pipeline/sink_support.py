"""What a reader of committed records finds in topics, and tasks of the sink without Spark around them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from millrace.client.broker_client import BrokerClient
from millrace.pipeline.sink.commit import Job, TaskOutcome
from millrace.pipeline.sink.data_sink import _write_exactly_once
from millrace.pipeline.sink.options import SinkOptions, read_sink_options

DEADLINE_S: Final = 90.0


class Found(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


def read_committed(bootstrap: str, topic: str, partitions: int = 1) -> list[Found]:
    """Every committed record up to the last stable offset of this moment, in order for each partition."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Found] = []
    missing = set(range(partitions))
    deadline = time.monotonic() + DEADLINE_S
    while missing:
        assert time.monotonic() < deadline, f"no end of {topic}: {missing}"
        for message in consumer.consume(1000, timeout=0.2):
            error = message.error()
            if error is None:
                headers = tuple(message.headers() or ())
                found.append(
                    Found(
                        message.partition(), message.key(), message.value(), message.timestamp()[1], headers
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                missing.discard(message.partition())
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise AssertionError(error)
    consumer.close()
    return found


def values_of(bootstrap: str, topic: str, partitions: int = 1) -> list[str]:
    return [(each.value or b"").decode() for each in read_committed(bootstrap, topic, partitions)]


def sink_options(bootstrap: str, topic: str, **others: str) -> SinkOptions:
    return read_sink_options({"bootstrap.servers": bootstrap, "topic": topic, **others}, is_streaming=True)


def stream_job(name: str, epoch: int) -> Job:
    return Job(name=name, epoch=epoch, is_marked=True, is_stream=True)


@contextmanager
def connected(options: SinkOptions) -> Iterator[BrokerClient]:
    with BrokerClient(options.bootstrap, timeout_ms=60_000) as client:
        yield client


def rows(values: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": pa.array([value.encode() for value in values], pa.binary())})


def run_task(
    client: BrokerClient, options: SinkOptions, job: Job, task: int, values: Sequence[str]
) -> TaskOutcome:
    """One attempt of a task, as a Spark worker runs it."""
    return _write_exactly_once(client, options, job, task, rows(values))


def run_tasks(
    client: BrokerClient, options: SinkOptions, job: Job, tasks: Mapping[int, Sequence[str]]
) -> list[TaskOutcome]:
    return [run_task(client, options, job, task, values) for task, values in tasks.items()]
