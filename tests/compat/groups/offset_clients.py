"""Offsets through each client: commit with metadata and epoch, read them back, start where a policy says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import NoOffsetForPartitionError as NoOffsetAiokafka
from kafka.errors import IllegalStateError
from kafka.errors import NoOffsetForPartitionError as NoOffsetKafkaPython
from typing_extensions import override

from tests.compat.groups.members import JavaMembers

DEADLINE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Committed:
    offset: int
    metadata: str | None = ""
    epoch: int | None = None
    """None where a client cannot tell or set it."""


class OffsetClient(Protocol):
    name: str
    has_metadata_when_reading: bool
    has_epoch: bool

    def commit(
        self, bootstrap: str, group: str, topic: str, committed: Committed, *, is_async: bool = False
    ) -> None: ...

    def committed(self, bootstrap: str, group: str, topic: str) -> Committed | None: ...

    def first_offset(self, bootstrap: str, group: str, topic: str, reset: str) -> int | None:
        """Where a member without a committed offset starts to read; None if it refuses to."""
        ...


class ConfluentOffsets(OffsetClient):
    name = "librdkafka"
    has_metadata_when_reading = False
    has_epoch = True

    def _consumer(self, bootstrap: str, group: str, **config: Any) -> Any:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
            | config
        )

    @override
    def commit(
        self, bootstrap: str, group: str, topic: str, committed: Committed, *, is_async: bool = False
    ) -> None:
        outcomes: list[Any] = []
        consumer = self._consumer(
            bootstrap, group, on_commit=lambda error, partitions: outcomes.append((error, partitions))
        )
        epoch = {} if committed.epoch is None else {"leader_epoch": committed.epoch}
        wanted = confluent_kafka.TopicPartition(
            topic, 0, committed.offset, metadata=committed.metadata, **epoch
        )
        if is_async:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])
            consumer.commit(offsets=[wanted], asynchronous=True)
            deadline = time.monotonic() + DEADLINE_S
            while not outcomes and time.monotonic() < deadline:
                consumer.poll(0.1)
            ((error, (partition,)),) = outcomes
            assert error is None, error
            assert partition.error is None, partition.error
        else:
            (partition,) = consumer.commit(offsets=[wanted], asynchronous=False)
            assert partition.error is None, partition.error
        consumer.close()

    @override
    def committed(self, bootstrap: str, group: str, topic: str) -> Committed | None:
        consumer = self._consumer(bootstrap, group)
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=DEADLINE_S)
        consumer.close()
        assert found.error is None, found.error
        if found.offset == confluent_kafka.OFFSET_INVALID:
            return None
        # It does not end the text that it received, and shows what lies behind it in memory.
        epoch = -1 if found.leader_epoch is None else found.leader_epoch
        return Committed(found.offset, None, epoch)

    @override
    def first_offset(self, bootstrap: str, group: str, topic: str, reset: str) -> int | None:
        config = {"auto.offset.reset": "error" if reset == "none" else reset, "session.timeout.ms": 3000}
        consumer = self._consumer(bootstrap, group, **config, **{"enable.partition.eof": True})
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        try:
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None or error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return int(message.offset())
                if error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    return None
        finally:
            consumer.close()
        raise AssertionError("neither a record nor an error")


class KafkaPythonOffsets(OffsetClient):
    name = "kafka-python"
    has_metadata_when_reading = True
    has_epoch = True

    @override
    def commit(
        self, bootstrap: str, group: str, topic: str, committed: Committed, *, is_async: bool = False
    ) -> None:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            epoch = -1 if committed.epoch is None else committed.epoch
            offsets = {partition: kafka.OffsetAndMetadata(committed.offset, committed.metadata, epoch)}
            if not is_async:
                consumer.commit(offsets)
                return
            future = consumer.commit_async(offsets)
            deadline = time.monotonic() + DEADLINE_S
            while not future.is_done and time.monotonic() < deadline:
                consumer.poll(timeout_ms=50)
            assert future.succeeded(), future.exception
        finally:
            consumer.close()

    @override
    def committed(self, bootstrap: str, group: str, topic: str) -> Committed | None:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        try:
            found = consumer.committed(kafka.TopicPartition(topic, 0), metadata=True)
            return None if found is None else Committed(found.offset, found.metadata, found.leader_epoch)
        finally:
            consumer.close()

    @override
    def first_offset(self, bootstrap: str, group: str, topic: str, reset: str) -> int | None:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=reset,
        )
        try:
            # Else it may join before it knows the topic, get nothing, and ask again in minutes.
            assert consumer.partitions_for_topic(topic)
            deadline = time.monotonic() + DEADLINE_S
            while time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=100).values():
                    return int(records[0].offset)
                # Partitions may be given and taken again while the group comes together.
                with contextlib.suppress(IllegalStateError):
                    if consumer.assignment():
                        return int(consumer.position(kafka.TopicPartition(topic, 0)))
            raise AssertionError("no partition was assigned")
        except NoOffsetKafkaPython:
            return None
        finally:
            consumer.close()


class AiokafkaOffsets(OffsetClient):
    name = "aiokafka"
    has_metadata_when_reading = False
    has_epoch = False

    @override
    def commit(
        self, bootstrap: str, group: str, topic: str, committed: Committed, *, is_async: bool = False
    ) -> None:
        async def commit() -> None:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            try:
                partition = aiokafka.TopicPartition(topic, 0)
                consumer.assign([partition])
                await consumer.commit({partition: (committed.offset, committed.metadata)})
            finally:
                await consumer.stop()

        asyncio.run(commit())

    @override
    def committed(self, bootstrap: str, group: str, topic: str) -> Committed | None:
        async def committed() -> Committed | None:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            try:
                consumer.assign([aiokafka.TopicPartition(topic, 0)])
                found = await consumer.committed(aiokafka.TopicPartition(topic, 0))
                return None if found is None else Committed(found)
            finally:
                await consumer.stop()

        return asyncio.run(committed())

    @override
    def first_offset(self, bootstrap: str, group: str, topic: str, reset: str) -> int | None:
        async def first_offset() -> int | None:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset=reset,
            )
            await consumer.start()
            try:
                # The refusal reaches the application where it asks for records.
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    return int(records[0].offset)
                return int(await consumer.position(aiokafka.TopicPartition(topic, 0)))
            except NoOffsetAiokafka:
                return None
            finally:
                await consumer.stop()

        return asyncio.run(first_offset())


class JavaOffsets(OffsetClient):
    name = "java"
    has_metadata_when_reading = True
    has_epoch = True

    def __init__(self, java: JavaMembers) -> None:
        self._java = java

    @override
    def commit(
        self, bootstrap: str, group: str, topic: str, committed: Committed, *, is_async: bool = False
    ) -> None:
        offsets = [
            {
                "topic": topic,
                "partition": 0,
                "offset": committed.offset,
                "metadata": committed.metadata,
                "epoch": committed.epoch,
            }
        ]
        config = {"group.id": group, "enable.auto.commit": "false"}
        answer = self._java.call("commit", bootstrap, config, offsets=offsets, **{"async": is_async})
        assert "error" not in answer, answer

    @override
    def committed(self, bootstrap: str, group: str, topic: str) -> Committed | None:
        partitions = [{"topic": topic, "partition": 0}]
        answer = self._java.call("committed", bootstrap, {"group.id": group}, partitions=partitions)
        ((_, _, offset, metadata, epoch),) = answer["offsets"]
        return None if offset is None else Committed(offset, metadata, epoch)

    @override
    def first_offset(self, bootstrap: str, group: str, topic: str, reset: str) -> int | None:
        config = {"group.id": group, "auto.offset.reset": reset, "enable.auto.commit": "false"}
        answer = self._java.call("position", bootstrap, config, topic=topic, partition=0)
        if answer.get("error") == "NoOffsetForPartitionException":
            return None
        assert "error" not in answer, answer
        return int(answer["position"])
