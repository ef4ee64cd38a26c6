"""A cluster in memory, for what `millrace queue` asks over connections of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from millrace.client.broker_client import EARLIEST, ListedOffset, PartitionInfo, RawFetch, TopicInfo
from millrace.core.ids import TopicId, TopicPartition
from millrace.queues.dead_letters import Source, letter_headers
from millrace.queues.share_partition.changes import DeadLetter, DeadLetterCause
from millrace.wire.api_keys import ApiKey
from millrace.wire.records import Record, build_batch

Answer = Callable[[Any], Any]


class Cluster:
    """In the place of a `BrokerClient`."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.aborted: list[tuple[int, int]] = []
        self.answers: dict[ApiKey, Answer] = {}
        self.asked: list[Any] = []
        for name, partitions in (topics or {}).items():
            for number in range(partitions):
                self.logs[TopicPartition(name, number)] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def add(self, place: TopicPartition, *records: Record, **batch: Any) -> None:
        self.logs[place].append(build_batch(records, **batch))
        self.starts.setdefault(place, 0)
        self.ends[place] = records[-1].offset + 1

    def nodes(self) -> dict[int, tuple[str, int]]:
        return {1: ("h", 1)}

    def metadata(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        return {
            name: TopicInfo(
                name,
                TopicId(bytes(16)),
                False,
                {place.partition: PartitionInfo(1, 0) for place in self.logs if place.topic == name},
            )
            for name in sorted(names)
            if any(place.topic == name for place in self.logs)
        }

    def list_offsets(
        self, asked: Mapping[TopicPartition, int], _isolation: int = 1
    ) -> dict[TopicPartition, ListedOffset]:
        return {
            place: ListedOffset((self.starts if when == EARLIEST else self.ends).get(place, 0), -1, 0)
            for place, when in asked.items()
        }

    def retrying(self, operation: Callable[[], Any]) -> Any:
        return operation()

    def fetch_raw(self, _id: TopicId, place: TopicPartition, offset: int, **_more: Any) -> RawFetch:
        """One batch with each fetch, and a piece of the one behind it."""
        from millrace.wire.batch_header import read_header

        left = [batch for batch in self.logs[place] if read_header(batch).last_offset >= offset]
        data = b"".join((left[0], left[1][:70] if len(left) > 1 else b"")) if left else b""
        return RawFetch(self.ends[place], self.ends[place], 0, self.aborted, memoryview(data))

    def request(self, api_key: ApiKey, _version: int, message: Any, _node_id: int | None = None) -> Any:
        self.asked.append(message)
        return self.answers[api_key](message)


def letter(
    offset: int,
    cause: DeadLetterCause = DeadLetterCause.REJECTED,
    *,
    group: str = "g",
    topic: str = "jobs",
    partition: int = 0,
    key: bytes | None = None,
) -> Record:
    """A dead letter of the record that has the same offset."""
    headers = letter_headers(Source(group, topic, partition), offset, DeadLetter(offset, offset, 1, cause))
    return Record(offset, 1_000 + offset, key, b"v%d" % offset, (("own", b"x"), *headers))
