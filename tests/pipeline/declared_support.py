"""Declared pipelines in tests: files written, run once in this process, and what came out of topics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka

from millrace.pipeline.declared.check.check import load
from millrace.pipeline.declared.run.retries import RetryLimits
from millrace.pipeline.declared.run.runner import Runner
from millrace.pipeline.declared.run.state import state_directory
from millrace.pipeline.progress import ProgressBoard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 240.0


def send(bootstrap: str, topic: str, values: Iterable[object]) -> None:
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data)
    assert producer.flush(DEADLINE_S) == 0


def received(bootstrap: str, topic: str, at_least: int) -> list[Any]:
    """Every committed message of a topic, to its end; a commit returns before all can see it."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in partitions])
    found: list[Any] = []
    open_partitions = set(partitions)
    deadline = time.monotonic() + DEADLINE_S
    while open_partitions or len(found) < at_least:
        assert time.monotonic() < deadline, f"{topic}: {len(found)} of {at_least}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
            open_partitions.add(message.partition())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            open_partitions.discard(message.partition())
    consumer.close()
    return found


def run_once(spark: SparkSession, path: Path, limits: RetryLimits | None = None) -> ProgressBoard:
    """One run in this process, of all that is there."""
    pipeline, _ = load(path)
    state = state_directory(path, pipeline.name)
    board = ProgressBoard(pipeline.name)
    runner = Runner(
        pipeline=pipeline,
        state=state,
        board=board,
        say=lambda _text: None,
        master="local",
        once=True,
        limits=limits or RetryLimits(),
    )
    with state.held(pipeline.name):
        assert runner.run(lambda: spark) == "finished"
    status = state.status()
    assert status is not None
    assert status["state"] == "finished"
    return board


def write_file(folder: Path, text: str, **names: str) -> Path:
    for name, value in names.items():
        text = text.replace(f"@{name}@", value)
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return path
