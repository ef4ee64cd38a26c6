"""What a task takes for a loss, against a leader that answers as the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self, TypeVar

import pytest

from millrace.client.broker_client import EARLIEST, BrokerClient, ListedOffset
from millrace.client.errors import BrokerRefused
from millrace.client.fetch_frames import VERSIONS
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.override import override
from millrace.pipeline.errors import DataLost
from millrace.pipeline.records.decoder import RowFilter
from millrace.pipeline.source.options import SourceOptions, read_options
from millrace.pipeline.source.partition_reader import PartitionReader
from millrace.pipeline.source.planning import Range
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tests.harness.batches import batch

T = TypeVar("T")

ID = TopicId(bytes(range(16)))
PARTITION = TopicPartition("orders", 0)
RANGE = Range(topic_id=ID, partition=PARTITION, start=10, end=13)
OUT_OF_RANGE = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)


def records_from(offset: int) -> PartitionData:
    stored = bytearray(batch([b"x"] * (13 - offset)))
    stored[:8] = offset.to_bytes(8, "big")
    return PartitionData(high_watermark=13, last_stable_offset=13, records=bytes(stored))


class Leader:
    """Gives one answer after the other, the last of them again and again. Its log begins and ends as said."""

    def __init__(self, *answers: PartitionData, start: int, end: int) -> None:
        self._answers = list(answers)
        self._bounds = (start, end)
        self.asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def retrying(self, operation: Callable[[], T]) -> T:
        return operation()

    def connect_to_leader(self, partition: TopicPartition) -> tuple[Leader, int]:
        return self, VERSIONS[1]

    def forget_leader(self, partition: TopicPartition) -> None:
        pass

    def list_offsets(
        self, asked: Mapping[TopicPartition, int], isolation: int = 1
    ) -> dict[TopicPartition, ListedOffset]:
        return {each: ListedOffset(self._bounds[moment != EARLIEST], -1, 0) for each, moment in asked.items()}

    def send(self, api_key: int, version: int, body: bytes) -> int:
        self.asked += 1
        return self.asked

    def receive(self, correlation_id: int) -> memoryview:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        topic = FetchableTopicResponse(topic_id=ID, partitions=[answer])
        return memoryview(
            schema.response_encoder(ApiKey.FETCH, VERSIONS[1])(FetchResponse(responses=[topic]))
        )


def read(leader: Leader, **options: str) -> list[int]:
    class Faked(SourceOptions):
        @override
        def client(self) -> BrokerClient:
            return leader  # type: ignore[return-value]

    given = read_options(
        {"bootstrap.servers": "fake:1", "subscribe": "orders", "request.timeout.ms": "100", **options},
        streaming=True,
    )
    faked = Faked(**{name: getattr(given, name) for name in SourceOptions.__dataclass_fields__})
    reader = PartitionReader(faked, RANGE, ("offset",), RowFilter(offset_from=10, offset_to=13))
    return [row["offset"] for each in reader.read() for row in each.to_pylist()]


def test_a_broker_that_refuses_an_offset_which_the_log_has_is_asked_again() -> None:
    """A leader that was just deposed, or has just begun, knows another end than the log has."""
    leader = Leader(OUT_OF_RANGE, records_from(10), start=0, end=13)
    assert read(leader, **{"request.timeout.ms": "60000"}) == [10, 11, 12]
    assert leader.asked == 2


def test_one_that_goes_on_refusing_it_ends_the_task_even_where_losses_are_borne() -> None:
    """Nothing shows that records are gone: to go on without them would be the loss."""
    with pytest.raises(BrokerRefused, match="OFFSET_OUT_OF_RANGE"):
        read(Leader(OUT_OF_RANGE, start=0, end=13), failOnDataLoss="false")


def test_an_offset_below_the_start_of_the_log_is_a_loss() -> None:
    with pytest.raises(DataLost, match="offsets 10 to 11 are gone, its log starts at 12"):
        read(Leader(OUT_OF_RANGE, records_from(12), start=12, end=13))
    assert read(Leader(OUT_OF_RANGE, records_from(12), start=12, end=13), failOnDataLoss="false") == [12]


def test_an_offset_behind_the_end_of_the_log_is_a_loss() -> None:
    with pytest.raises(DataLost, match="offset 10 of a range up to 13 is behind the end of its log, 8"):
        read(Leader(OUT_OF_RANGE, start=0, end=8))
    assert read(Leader(OUT_OF_RANGE, start=0, end=8), failOnDataLoss="false") == []
