"""Members of share groups that speak to a broker without sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from millrace.core.ids import TopicId
from millrace.queues.share_partition.model import ShareKey
from millrace.replica.partition import Partition
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.messages import share_acknowledge as ack_messages
from millrace.wire.messages import share_fetch as fetch_messages
from millrace.wire.records import Record, build_batch, read_records, split_batches
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.network.client import Client

GROUP = "workers"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
WAIT_MS = 60_000

Ack = tuple[int, int, Sequence[int]]


class Queue(NamedTuple):
    """A topic that a share group reads from its beginning."""

    broker: Broker
    name: str
    topic_id: TopicId
    partitions: Sequence[Partition]

    def append(self, *counts: int, partition: int = 0, **fields: Any) -> None:
        """Batches with so many records."""
        for count in counts:
            records = [Record(number, NOW_MS, None, b"%d" % number) for number in range(count)]
            batch = memoryview(bytearray(build_batch(records, **fields)))
            self.partitions[partition].append(batch, NOW_MS)


def queue(
    broker: Broker,
    name: str = "jobs",
    partitions: int = 1,
    *,
    configs: dict[str, str] | None = None,
    group: str = GROUP,
    start_offset: int = 0,
) -> Queue:
    topic = broker.create_topic(name, partitions, configs)

    async def initialize() -> None:
        for index in range(partitions):
            key = ShareKey(group, topic.topic_id, index)
            error = await broker.persister.initialize(key, state_epoch=1, start_offset=start_offset)
            assert error is None, error

    broker.run(initialize())
    found = [broker.services.partitions.find(name, index) for index in range(partitions)]
    return Queue(broker, name, topic.topic_id, [each for each in found if each is not None])


class Member:
    """A share consumer with a connection and a session of its own."""

    def __init__(self, broker: Broker, name: str = "m1", group: str | None = GROUP, version: int = 2) -> None:
        client = Client(broker.services)
        self._transport, self.connection = client.transport, client.connection
        self.name = name
        self.group = group
        self.version = version
        self.epoch = 0

    def fetch(
        self,
        *asked: tuple[Queue, int] | tuple[Queue, int, Sequence[Ack]],
        forgotten: Sequence[tuple[Queue, int]] = (),
        epoch: int | None = None,
        **fields: Any,
    ) -> None:
        if epoch is None:
            epoch = self.epoch
            self.epoch += 1
        wishes: dict[str, Any] = {
            "max_wait_ms": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            **fields,
        }
        request = fetch_messages.ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=[
                fetch_messages.FetchTopic(
                    topic_id=each[0].topic_id,
                    partitions=[
                        fetch_messages.FetchPartition(
                            partition_index=each[1],
                            acknowledgement_batches=_batches(
                                fetch_messages, each[2] if len(each) > 2 else ()
                            ),
                        )
                    ],
                )
                for each in asked
            ],
            forgotten_topics_data=[
                fetch_messages.ForgottenTopic(topic_id=each.topic_id, partitions=[index])
                for each, index in forgotten
            ],
            **wishes,
        )
        self._send(ApiKey.SHARE_FETCH, request)

    def acknowledge(
        self, *asked: tuple[Queue, int, Sequence[Ack]], epoch: int | None = None, **fields: Any
    ) -> None:
        if epoch is None:
            epoch = self.epoch
            self.epoch += 1
        request = ack_messages.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=[
                ack_messages.AcknowledgeTopic(
                    topic_id=each.topic_id,
                    partitions=[
                        ack_messages.AcknowledgePartition(
                            partition_index=index, acknowledgement_batches=_batches(ack_messages, acks)
                        )
                    ],
                )
                for each, index, acks in asked
            ],
            **fields,
        )
        self._send(ApiKey.SHARE_ACKNOWLEDGE, request)

    def _send(self, key: ApiKey, request: Any) -> None:
        body = schema.request_encoder(key, self.version)(request)
        frame = struct.pack(">hhihb", key, self.version, 7, -1, 0) + body
        buffer = self.connection.get_buffer(-1)
        buffer[: len(frame) + 4] = struct.pack(">i", len(frame)) + frame
        self.connection.buffer_updated(len(frame) + 4)

    def take(self) -> bytes:
        """What has come since, as one piece."""
        written = b"".join(self._transport.writes)
        self._transport.writes.clear()
        return written

    def fetched(self) -> Any:
        data = self.take()
        assert data, "no answer yet"
        assert struct.unpack_from(">i", data)[0] == len(data) - 4
        return schema.response_decoder(ApiKey.SHARE_FETCH, self.version)(data[9:])

    def acknowledged(self) -> Any:
        data = self.take()
        assert data, "no answer yet"
        return schema.response_decoder(ApiKey.SHARE_ACKNOWLEDGE, self.version)(data[9:])

    def lose(self) -> None:
        self.connection.connection_lost(None)


def _batches(module: Any, acks: Sequence[Ack]) -> list[Any]:
    return [
        module.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acks
    ]


async def settle() -> None:
    """Let all that is under way come to its end."""
    for _ in range(20):
        await asyncio.sleep(0)


def parts(response: Any) -> dict[int, Any]:
    """The partitions of an answer, by their numbers."""
    assert response.error_code == 0, response
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def runs(part: Any) -> list[tuple[int, int, int]]:
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records]


def offsets(part: Any) -> list[int]:
    """Of the records that an answer carries, whoever they are for."""
    batches = split_batches(memoryview(part.records or b""))
    return [record.offset for batch in batches for record in read_records(batch)]
