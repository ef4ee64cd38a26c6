"""What is there in the end: every partition as clients see it, and every broker's copy on its disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millrace.sim.history import FinalRead, ReplicaRead
from millrace.wire.batch_header import BatchHeader, read_header
from millrace.wire.records import split_batches
from tests.cluster.load.recorder import PATIENCE_S, now
from tests.cluster.load.writers import QUICK


class Readings:
    """Two consumers for all partitions: one that reads everything, one that reads what is committed."""

    def __init__(self, bootstrap: str) -> None:
        self._all = _Look(bootstrap, "read_uncommitted")
        self._committed = _Look(bootstrap, "read_committed")

    def partition(self, topic: str, partition: int) -> list[FinalRead]:
        log_start, high_watermark = self._all.ends(topic, partition)
        _, stable = self._committed.ends(topic, partition)
        looks = ((self._all, False, high_watermark), (self._committed, True, stable))
        return [
            FinalRead(
                at=now(),
                topic=topic,
                partition=partition,
                committed_only=committed_only,
                log_start=log_start,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                records=look.records(topic, partition, end),
            )
            for look, committed_only, end in looks
        ]

    def close(self) -> None:
        self._all.close()
        self._committed.close()


class _Look:
    def __init__(self, bootstrap: str, isolation: str) -> None:
        self._consumer: Any = confluent_kafka.Consumer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "group.id": "final-look",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "check.crcs": True,
            }
        )

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset and the end, as this isolation level has it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                return int(low), int(high)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def records(self, topic: str, partition: int, end: int) -> tuple[tuple[int, str], ...]:
        self._consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + PATIENCE_S
        found: list[tuple[int, str]] = []
        while True:
            assert time.monotonic() < deadline, f"{topic}-{partition} is read up to {found[-1:]} of {end}"
            for message in self._consumer.consume(1_000, timeout=0.5):
                error = message.error()
                if error is None:
                    found.append((message.offset(), message.value().decode()))
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    return tuple(found)

    def close(self) -> None:
        self._consumer.close()


def read_copy(data_dir: Path, node_id: int, final: FinalRead) -> ReplicaRead:
    """One broker's batches of a partition, up to what clients were told is committed."""
    batches = [
        (header.base_offset, header.crc)
        for header in _headers(data_dir / f"{final.topic}-{final.partition}")
        if header.base_offset < final.high_watermark
    ]
    return ReplicaRead(
        at=now(),
        node_id=node_id,
        topic=final.topic,
        partition=final.partition,
        log_start=final.log_start,
        high_watermark=final.high_watermark,
        batches=tuple(batches),
    )


def doubled(data_dir: Path, final: FinalRead) -> list[str]:
    """Every value that a partition has twice, with what the batches around it say of their producer: the same
    sequence in the same epoch is a repetition that the broker did not know; another epoch is a client that
    began to number anew while it could not know what had been stored."""
    offsets: dict[str, list[int]] = {}
    for offset, value in final.records:
        offsets.setdefault(value, []).append(offset)
    twice = {value: found for value, found in offsets.items() if len(found) > 1}
    if not twice:
        return []
    headers = list(_headers(data_dir / f"{final.topic}-{final.partition}"))
    return [
        f"{value} of {final.topic}-{final.partition}: " + ", ".join(_origin(headers, at) for at in found)
        for value, found in twice.items()
    ]


def _origin(headers: list[BatchHeader], offset: int) -> str:
    for header in headers:
        if header.base_offset <= offset <= header.last_offset:
            sequence = header.base_sequence + offset - header.base_offset
            return (
                f"offset {offset} (batch {header.base_offset} to {header.last_offset}, producer "
                f"{header.producer_id}, epoch {header.producer_epoch}, base sequence {header.base_sequence}, "
                f"so sequence {sequence}; leader epoch {header.leader_epoch}, "
                f"timestamps {header.base_timestamp} to {header.max_timestamp})"
            )
    return f"offset {offset} (in no batch of this copy)"


def _headers(directory: Path) -> Iterator[BatchHeader]:
    for path in sorted(directory.glob("*.log")):
        for batch in split_batches(memoryview(path.read_bytes())):
            yield read_header(batch)
