"""One group member as a process: joins, processes numbered records, commits after each batch, tells of it.

Started as `python -m tests.compat.groups.member JSON`. Every event is one JSON line on standard output with
the time of the machine's monotonic clock, which all processes share. A line `stop` on standard input, or its
end, makes it leave in order. It is killed and stopped by signals from outside.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

POLL_S: Final = 0.05
RECORDS_AT_ONCE: Final = 20


def tell(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic()} | facts) + "\n"
    os.write(sys.stdout.fileno(), line.encode())


def is_asked_to_stop() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def number_in(topic: str, value: bytes | None) -> int:
    """The record's number; its value also names its topic, so that a record of another one is noticed."""
    assert value is not None
    name, number = value.decode().rsplit(" ", 1)
    assert name == topic, f"a record of {name} came out of {topic}"
    return int(number)


class Processed:
    """What this member has processed and has still to commit."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}

    def add(self, records: Iterable[tuple[str, int, int, int]]) -> None:
        rows = list(records)
        if rows:
            tell("records", records=rows)
        for topic, partition, offset, _ in rows:
            self._next[topic, partition] = offset + 1

    def waiting(self) -> dict[tuple[str, int], int]:
        return dict(self._next)

    def clear(self) -> None:
        self._next.clear()

    def committed(self, offsets: Mapping[tuple[str, int], int]) -> None:
        tell("committed", offsets=[[*where, offset] for where, offset in offsets.items()])
        self.clear()

    def refused(self, error: str) -> None:
        """In the middle of a rebalance it is tried again, at the latest when partitions are given up."""
        tell("commit_failed", error=error)
        if "REBALANCE_IN_PROGRESS" not in error and "RebalanceInProgress" not in error:
            self.clear()


def run_confluent(bootstrap: str, topics: list[str], config: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    processed = Processed()
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "fetch.wait.max.ms": 100,
            **config,
        }
    )

    def commit() -> None:
        offsets = processed.waiting()
        if not offsets:
            return
        try:
            wanted = [TopicPartition(*where, offset) for where, offset in offsets.items()]
            for each in consumer.commit(offsets=wanted, asynchronous=False):
                if each.error is not None:
                    raise KafkaException(each.error)
        except KafkaException as error:
            processed.refused(error.args[0].name())
        else:
            processed.committed(offsets)

    def names(partitions: list[Any]) -> list[list[Any]]:
        return [[each.topic, each.partition] for each in partitions]

    def assigned(_consumer: Any, partitions: list[Any]) -> None:
        tell("assigned", partitions=names(partitions))

    def revoked(_consumer: Any, partitions: list[Any]) -> None:
        commit()
        tell("revoked", partitions=names(partitions))

    def lost(_consumer: Any, partitions: list[Any]) -> None:
        processed.clear()
        tell("lost", partitions=names(partitions))

    consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
    tell("ready")
    while not is_asked_to_stop():
        batch = []
        for message in consumer.consume(RECORDS_AT_ONCE, timeout=POLL_S):
            error = message.error()
            if error is None:
                number = number_in(message.topic(), message.value())
                batch.append((message.topic(), message.partition(), message.offset(), number))
            elif error.code() != KafkaError._PARTITION_EOF:
                tell("error", error=error.name(), fatal=error.fatal())
        processed.add(batch)
        commit()
    tell("leaving")
    consumer.close()


def run_kafka_python(bootstrap: str, topics: list[str], config: dict[str, Any]) -> None:
    import kafka
    from kafka.errors import KafkaError

    processed = Processed()
    options = dict(config)
    assignors = options.pop("assignors", None)
    if assignors is not None:
        options["partition_assignment_strategy"] = [_kafka_python_assignor(name) for name in assignors]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        max_poll_records=RECORDS_AT_ONCE,
        **options,
    )

    def commit() -> None:
        offsets = processed.waiting()
        if not offsets:
            return
        try:
            consumer.commit(
                {
                    kafka.TopicPartition(*where): kafka.OffsetAndMetadata(offset, "", -1)
                    for where, offset in offsets.items()
                }
            )
        except KafkaError as error:
            processed.refused(type(error).__name__)
        else:
            processed.committed(offsets)

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # an untyped library
        def on_partitions_revoked(self, revoked: Any) -> None:
            commit()
            if revoked:
                tell("revoked", partitions=[list(each) for each in revoked])

        def on_partitions_assigned(self, assigned: Any) -> None:
            tell("assigned", partitions=[list(each) for each in assigned])

        def on_partitions_lost(self, lost: Any) -> None:
            processed.clear()
            tell("lost", partitions=[list(each) for each in lost])

    consumer.subscribe(topics, listener=Listener())
    # Else it may join before it knows its topics, get nothing, and ask again in minutes.
    for topic in topics:
        consumer.partitions_for_topic(topic)
    tell("ready")
    while not is_asked_to_stop():
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            processed.add(
                (each.topic, each.partition, each.offset, number_in(each.topic, each.value))
                for each in records
            )
        commit()
    tell("leaving")
    consumer.close()


def _kafka_python_assignor(name: str) -> Any:
    from kafka.coordinator.assignors import range as ranges
    from kafka.coordinator.assignors import roundrobin
    from kafka.coordinator.assignors.sticky import sticky_assignor

    return {
        "range": ranges.RangePartitionAssignor,
        "roundrobin": roundrobin.RoundRobinPartitionAssignor,
        "sticky": sticky_assignor.StickyPartitionAssignor,
    }[name]


async def run_aiokafka(bootstrap: str, topics: list[str], config: dict[str, Any]) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors import range as ranges
    from aiokafka.coordinator.assignors import roundrobin
    from aiokafka.errors import KafkaError

    known = {"range": ranges.RangePartitionAssignor, "roundrobin": roundrobin.RoundRobinPartitionAssignor}
    options = dict(config)
    assignors = options.pop("assignors", None)
    if assignors is not None:
        options["partition_assignment_strategy"] = tuple(known[name] for name in assignors)
    processed = Processed()
    # The listener runs in another task: what was fetched before a revocation must not be processed after it.
    turn = asyncio.Lock()
    revocations = 0
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        **options,
    )

    async def commit() -> None:
        offsets = processed.waiting()
        if not offsets:
            return
        try:
            await consumer.commit(
                {aiokafka.TopicPartition(*where): offset for where, offset in offsets.items()}
            )
        except KafkaError as error:
            processed.refused(type(error).__name__)
        else:
            processed.committed(offsets)

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # an untyped library
        async def on_partitions_revoked(self, revoked: Any) -> None:
            nonlocal revocations
            async with turn:
                await commit()
                tell("revoked", partitions=[list(each) for each in revoked])
                revocations += 1

        async def on_partitions_assigned(self, assigned: Any) -> None:
            tell("assigned", partitions=[list(each) for each in assigned])

    consumer.subscribe(topics, listener=Listener())
    await consumer.start()
    tell("ready")
    while not is_asked_to_stop():
        batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=RECORDS_AT_ONCE)
        before = revocations
        async with turn:
            if before != revocations:
                continue
            for records in batches.values():
                processed.add(
                    (each.topic, each.partition, each.offset, number_in(each.topic, each.value))
                    for each in records
                )
            await commit()
    tell("leaving")
    await consumer.stop()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    common = (arguments["bootstrap"], arguments["topics"], arguments["config"])
    match arguments["client"]:
        case "confluent":
            run_confluent(*common)
        case "kafka-python":
            run_kafka_python(*common)
        case "aiokafka":
            asyncio.run(run_aiokafka(*common))
        case unknown:
            raise ValueError(unknown)
    tell("closed")


if __name__ == "__main__":
    main()
