"""Fetches, and finds in an answer what a consumer may see: all but control batches and aborted
transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import REQUEST_TIMEOUT_S, Client, ErrorAnswer
from millrace.wire.api_keys import ApiKey
from millrace.wire.batch_header import LENGTH_END, OFFSET_AND_LENGTH, BatchHeader
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from millrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millrace.wire.record_spans import MalformedBatch
from millrace.wire.records import ControlType, check_batch, read_control_marker, read_records

FETCH_VERSION: Final = 17
LIST_OFFSETS_VERSION: Final = 8
FETCH_BYTES: Final = 1 << 20
EARLIEST: Final = -2
LATEST: Final = -1

Visible = tuple[tuple[int, str], ...]
"""Offset and value of each record."""


class Found(NamedTuple):
    """What a consumer sees of an answer, and where it goes on."""

    records: Visible
    next_offset: int


def visible_records(
    data: bytes, offset: int, aborted: Sequence[AbortedTransaction] | None, *, committed_only: bool
) -> Found:
    """The records from `offset` on, and where to go on. Like any client, it stops at a batch whose checksum
    is wrong, and asks for that again."""
    records: list[tuple[int, str]] = []
    waiting = sorted(aborted or (), key=lambda each: each.first_offset)
    skipped: dict[int, None] = {}
    next_offset = offset
    for batch, header in _sound_batches(memoryview(data)):
        next_offset = max(next_offset, header.next_offset)
        while committed_only and waiting and waiting[0].first_offset <= header.last_offset:
            skipped[waiting.pop(0).producer_id] = None
        if header.is_control:
            (record,) = read_records(batch)
            marker = read_control_marker(record.key, record.value)
            if marker is not None and marker.type == ControlType.ABORT:
                skipped.pop(header.producer_id, None)
            continue
        if header.is_transactional and header.producer_id in skipped:
            continue
        records += [
            (record.offset, (record.value or b"").decode())
            for record in read_records(batch)
            if record.offset >= offset
        ]
    return Found(tuple(records), next_offset)


def _sound_batches(data: memoryview) -> Iterator[tuple[memoryview, BatchHeader]]:
    position = 0
    while position + LENGTH_END <= len(data):
        _, length = OFFSET_AND_LENGTH.unpack_from(data, position)
        batch = data[position : position + LENGTH_END + max(length, 0)]
        try:
            header = check_batch(batch)
        except MalformedBatch:
            return
        yield batch, header
        position += len(batch)


async def fetch(
    client: Client,
    topic: str,
    positions: dict[int, int],
    *,
    committed_only: bool,
    wait_ms: int,
    with_epoch: bool = True,
) -> dict[int, PartitionData]:
    """Ask each leader once, one after the other; raises ConnectionFailed or ErrorAnswer."""
    by_leader: dict[tuple[str, int], list[int]] = {}
    for partition in positions:
        by_leader.setdefault(await client.leader(topic, partition), []).append(partition)
    answers: dict[int, PartitionData] = {}
    for address, partitions in by_leader.items():
        info = client.topics.get(topic)
        if info is None:
            raise ConnectionFailed("the leaders have changed")
        request = FetchRequest(
            max_wait_ms=wait_ms if len(by_leader) == 1 else 0,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=1 if committed_only else 0,
            topics=[
                FetchTopic(
                    topic_id=info.topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            current_leader_epoch=info.leaders[partition][1] if with_epoch else -1,
                            fetch_offset=positions[partition],
                            partition_max_bytes=FETCH_BYTES,
                        )
                        for partition in partitions
                    ],
                )
            ],
        )
        timeout_s = REQUEST_TIMEOUT_S + wait_ms / 1000
        asked_at = client.now()
        response: FetchResponse = await client.ask(address, ApiKey.FETCH, FETCH_VERSION, request, timeout_s)
        if response.error_code:
            raise ErrorAnswer("Fetch", response.error_code)
        for answered in response.responses:
            for data in answered.partitions:
                answers[data.partition_index] = data
                if not data.error_code:
                    client.served(address, asked_at, "Fetch")
    return answers


async def list_offset(
    client: Client, topic: str, partition: int, timestamp: int, *, committed_only: bool = False
) -> int:
    address = await client.leader(topic, partition)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if committed_only else 0,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)],
            )
        ],
    )
    asked_at = client.now()
    response: ListOffsetsResponse = await client.ask(
        address, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request
    )
    (answered,) = response.topics
    (found,) = answered.partitions
    if found.error_code:
        if ErrorCode(found.error_code).retriable:
            client.forget_leader(topic)
        raise ErrorAnswer("ListOffsets", found.error_code)
    client.served(address, asked_at, "ListOffsets")
    return found.offset
