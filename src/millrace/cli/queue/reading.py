"""Records of partitions by plain fetches: whoever only looks acquires nothing and commits nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.cli.clients import RequestFailed
from millrace.client.broker_client import EARLIEST, LATEST, READ_COMMITTED, BrokerClient, TopicInfo
from millrace.core.ids import TopicPartition
from millrace.wire.batch_header import HEADER_SIZE, read_header
from millrace.wire.records import ControlType, Record, read_control_marker, read_records

FETCH_BYTES: Final = 1 << 20


def topic_named(client: BrokerClient, name: str) -> TopicInfo:
    found = client.metadata([name]).get(name)
    if found is None:
        raise RequestFailed(f"no such topic: {name}")
    return found


def bounds(client: BrokerClient, topic: TopicInfo, isolation: int = READ_COMMITTED) -> dict[int, range]:
    """Which offsets each partition has now."""
    places = [TopicPartition(topic.name, number) for number in topic.partitions]
    first = client.list_offsets(dict.fromkeys(places, EARLIEST), isolation)
    last = client.list_offsets(dict.fromkeys(places, LATEST), isolation)
    return {place.partition: range(first[place].offset, last[place].offset) for place in places}


def read(
    client: BrokerClient, topic: TopicInfo, partition: int, offsets: range, isolation: int = READ_COMMITTED
) -> Iterator[Record]:
    """The records of these offsets in order, without those of aborted transactions if only committed ones
    are wanted."""
    place, offset = TopicPartition(topic.name, partition), offsets.start
    while offset < offsets.stop:
        start = offset
        fetched = client.retrying(
            lambda at=start: client.fetch_raw(  # type: ignore[misc]  # bound now, called at once
                topic.topic_id, place, at, max_bytes=FETCH_BYTES, isolation=isolation
            )
        )
        waiting = sorted(fetched.aborted, key=lambda each: each[1], reverse=True)
        aborted: set[int] = set()
        # The bytes are valid until the next fetch, which whoever takes the records may well begin.
        for batch in _whole_batches(bytes(fetched.records)):
            header = read_header(batch)
            offset = header.next_offset
            while waiting and waiting[-1][1] <= header.last_offset:
                aborted.add(waiting.pop()[0])
            if header.is_control:
                if _is_abort(batch):
                    aborted.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborted:
                continue
            yield from (each for each in read_records(batch) if start <= each.offset < offsets.stop)
        if offset == start:
            raise RequestFailed(f"{place} gives nothing at offset {start}, before its end {offsets.stop}")


def first_record(client: BrokerClient, topic: TopicInfo, partition: int, offsets: range) -> Record | None:
    return next(read(client, topic, partition, offsets), None)


def _whole_batches(data: bytes) -> Iterator[bytes]:
    """The last one may be cut off."""
    position = 0
    while position + HEADER_SIZE <= len(data):
        end = position + read_header(data, position).size_bytes
        if end > len(data):
            return
        yield data[position:end]
        position = end


def _is_abort(batch: bytes) -> bool:
    records = read_records(batch)
    marker = read_control_marker(records[0].key, records[0].value) if records else None
    return marker is not None and marker.type == ControlType.ABORT
