"""Five clients behind one face: each writes messages to a partition and reads offsets from partitions."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import aiokafka
import confluent_kafka
import kafka
from typing_extensions import override

from tests.compat.messages import Headers, Message, Received
from tests.harness.java import JavaHost
from tests.harness.kcat import Kcat

READ_DEADLINE_S: Final = 30.0
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Spans = Mapping[tuple[str, int], tuple[int, int]]
"""Which offsets to read, from and to, by topic and partition."""


class Client(Protocol):
    name: str

    def write(
        self, bootstrap: str, topic: str, partition: int, messages: Sequence[Message], codec: str
    ) -> list[int]:
        """Write in order and wait for the acknowledgements; the offsets."""

    def read(self, bootstrap: str, spans: Spans) -> list[Received]:
        """All messages of the spans, in the order in which the client gave them."""

    def representable(self, message: Message) -> bool:
        """Whether this client can write that message at all."""


def expected_count(spans: Spans) -> int:
    return sum(end - start for start, end in spans.values())


class ConfluentClient(Client):
    name = "confluent-kafka"

    @override
    def representable(self, message: Message) -> bool:
        return True

    @override
    def write(
        self, bootstrap: str, topic: str, partition: int, messages: Sequence[Message], codec: str
    ) -> list[int]:
        producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": 20_000,
            }
        )
        offsets: list[int] = []
        failures: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error.name())
            else:
                offsets.append(message.offset())

        for message in messages:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                partition=partition,
                headers=list(message.headers),
                on_delivery=delivered,
                **({} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}),
            )
        assert producer.flush(READ_DEADLINE_S) == 0
        assert not failures, failures
        return offsets

    @override
    def read(self, bootstrap: str, spans: Spans) -> list[Received]:
        consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, partition, start)
                for (topic, partition), (start, _) in spans.items()
            ]
        )
        received: list[Received] = []
        deadline = time.monotonic() + READ_DEADLINE_S
        while len(received) < expected_count(spans) and time.monotonic() < deadline:
            for message in consumer.consume(1_000, timeout=0.2):
                assert message.error() is None, message.error()
                received.append(
                    Received(
                        topic=message.topic(),
                        partition=message.partition(),
                        offset=message.offset(),
                        timestamp_ms=message.timestamp()[1],
                        key=message.key(),
                        value=message.value(),
                        headers=tuple((name, value) for name, value in message.headers() or ()),
                    )
                )
        consumer.close()
        return received


class KafkaPythonClient(Client):
    name = "kafka-python"

    @override
    def representable(self, message: Message) -> bool:
        has_null_header = any(value is None for _, value in message.headers)
        return not has_null_header and (message.key is not None or message.value is not None)

    @override
    def write(
        self, bootstrap: str, topic: str, partition: int, messages: Sequence[Message], codec: str
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all",
            linger_ms=20,
            enable_idempotence=True,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush(timeout=READ_DEADLINE_S)
            return [future.get(timeout=READ_DEADLINE_S).offset for future in futures]
        finally:
            producer.close(timeout=5)

    @override
    def read(self, bootstrap: str, spans: Spans) -> list[Received]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none", check_crcs=True
        )
        try:
            partitions = {kafka.TopicPartition(*where): span for where, span in spans.items()}
            consumer.assign(list(partitions))
            for partition, (start, _) in partitions.items():
                consumer.seek(partition, start)
            received: list[Received] = []
            deadline = time.monotonic() + READ_DEADLINE_S
            while len(received) < expected_count(spans) and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=200).values():
                    received += [_from_kafka_python(record) for record in records]
            return received
        finally:
            consumer.close()


def _from_kafka_python(record: Any) -> Received:
    return Received(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple((name, value) for name, value in record.headers),
    )


class AiokafkaClient(Client):
    name = "aiokafka"

    @override
    def representable(self, message: Message) -> bool:
        return message.key is not None or message.value is not None

    @override
    def write(
        self, bootstrap: str, topic: str, partition: int, messages: Sequence[Message], codec: str
    ) -> list[int]:
        async def write() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
                linger_ms=20,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        partition=partition,
                        timestamp_ms=message.timestamp_ms,
                        headers=list(message.headers),
                    )
                    for message in messages
                ]
                return [(await future).offset for future in sent]
            finally:
                await producer.stop()

        return asyncio.run(write())

    @override
    def read(self, bootstrap: str, spans: Spans) -> list[Received]:
        async def read() -> list[Received]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none", check_crcs=True
            )
            await consumer.start()
            try:
                partitions = {aiokafka.TopicPartition(*where): span for where, span in spans.items()}
                consumer.assign(list(partitions))
                for partition, (start, _) in partitions.items():
                    consumer.seek(partition, start)
                received: list[Received] = []
                deadline = time.monotonic() + READ_DEADLINE_S
                while len(received) < expected_count(spans) and time.monotonic() < deadline:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        received += [_from_kafka_python(record) for record in records]
                return received
            finally:
                await consumer.stop()

        return asyncio.run(read())


class KcatClient(Client):
    """kcat sets no timestamps, and one set of headers in a run."""

    name = "kcat"
    _DELIMITER: Final = b"\x1e"

    def __init__(self, kcat: Kcat) -> None:
        self._kcat = kcat

    @override
    def representable(self, message: Message) -> bool:
        parts = (message.key or b"") + (message.value or b"")
        return message.headers == () and self._DELIMITER not in parts and b"\x1f" not in parts

    @override
    def write(
        self, bootstrap: str, topic: str, partition: int, messages: Sequence[Message], codec: str
    ) -> list[int]:
        # -Z turns an empty key or value into null; kcat has no way to write both kinds in one run.
        lines = [
            (message.key or b"") + b"\x1f" + (message.value or b"") + self._DELIMITER for message in messages
        ]
        answer = self._kcat.run(
            *("-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-z", codec, "-Z"),
            *("-D", "\\x1e", "-K", "\\x1f", "-H", "written-by=kcat", "-X", "enable.idempotence=true"),
            stdin=b"".join(lines),
        )
        assert answer.returncode == 0, answer.stderr
        return []

    @override
    def read(self, bootstrap: str, spans: Spans) -> list[Received]:
        received: list[Received] = []
        for (topic, partition), (start, end) in spans.items():
            answer = self._kcat.run(
                *("-C", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", str(start)),
                *("-c", str(end - start), "-e", "-q", "-f", "%o %T %K %S %h\\n%k%s\\n"),
                *("-X", "check.crcs=true"),
            )
            assert answer.returncode == 0, answer.stderr
            received += _parse_kcat(topic, partition, answer.stdout)
        return received


def _parse_kcat(topic: str, partition: int, output: bytes) -> list[Received]:
    received = []
    position = 0
    while position < len(output):
        end = output.index(b"\n", position)
        offset, timestamp, key_size, value_size, headers = output[position:end].split(b" ", 4)
        position = end + 1
        key, position = _take(output, position, int(key_size))
        value, position = _take(output, position, int(value_size))
        assert output[position : position + 1] == b"\n"
        position += 1
        received.append(
            Received(
                topic=topic,
                partition=partition,
                offset=int(offset),
                timestamp_ms=int(timestamp),
                key=key,
                value=value,
                headers=_parse_kcat_headers(headers),
            )
        )
    return received


def _take(output: bytes, position: int, size: int) -> tuple[bytes | None, int]:
    return (None, position) if size < 0 else (output[position : position + size], position + size)


def _parse_kcat_headers(text: bytes) -> Headers:
    """kcat prints headers as text, `name=value,...`; null becomes NULL. See `as_kcat_prints`."""
    return (("as printed", text),) if text else ()


def as_kcat_prints(headers: Headers) -> Headers:
    """What the reader above gives for these headers."""
    parts = [name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in headers]
    return (("as printed", b",".join(parts)),) if parts else ()


class JavaClient(Client):
    name = "java"

    def __init__(self, java: JavaHost) -> None:
        self._java = java

    @override
    def representable(self, message: Message) -> bool:
        return True

    @override
    def write(
        self, bootstrap: str, topic: str, partition: int, messages: Sequence[Message], codec: str
    ) -> list[int]:
        results = self.produce(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": "true",
                "linger.ms": "20",
            },
            [(topic, partition, message) for message in messages],
        )
        return [result["offset"] for result in results]

    def produce(
        self, config: Mapping[str, str], messages: Sequence[tuple[str, int, Message]]
    ) -> list[dict[str, Any]]:
        """Each message's outcome: {"offset", "timestamp"} or {"error", "message"}."""
        answer = self._java.call(
            {
                "op": "produce",
                "config": dict(config),
                "messages": [
                    {
                        "topic": topic,
                        "partition": partition,
                        "key": _to_base64(message.key),
                        "value": _to_base64(message.value),
                        "timestamp": message.timestamp_ms,
                        "headers": [[name, _to_base64(value)] for name, value in message.headers],
                    }
                    for topic, partition, message in messages
                ],
            }
        )
        assert "results" in answer, answer
        results: list[dict[str, Any]] = answer["results"]
        return results

    @override
    def read(self, bootstrap: str, spans: Spans) -> list[Received]:
        answer = self._java.call(
            {
                "op": "consume",
                "config": {
                    "bootstrap.servers": bootstrap,
                    "auto.offset.reset": "none",
                    "check.crcs": "true",
                    "max.poll.records": "2000",
                },
                "partitions": [
                    {"topic": topic, "partition": partition, "start": start}
                    for (topic, partition), (start, _) in spans.items()
                ],
                "count": expected_count(spans),
                "timeout_ms": int(READ_DEADLINE_S * 1_000),
            }
        )
        assert "records" in answer, answer
        return [
            Received(
                topic=record["topic"],
                partition=record["partition"],
                offset=record["offset"],
                timestamp_ms=record["timestamp"],
                key=_from_base64(record["key"]),
                value=_from_base64(record["value"]),
                headers=tuple((name, _from_base64(value)) for name, value in record["headers"]),
            )
            for record in answer["records"]
        ]


def _to_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
