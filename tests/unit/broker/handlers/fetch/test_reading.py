"""What a fetch finds in its partitions: bytes within its limits, errors that say where to go, and news."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.broker.handlers.fetch.reading import Reading
from millrace.broker.network.dispatch import ApiStats
from millrace.broker.network.fetch_sessions import FetchPlan
from millrace.core.ids import TopicId
from millrace.replica.partition import Partition
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tests.unit.broker.handlers.broker import NOW_MS, Broker, anybody
from tests.unit.broker.handlers.fetch.test_repeated_fetches import batch, lead_followers

NAME = "read"
SIZE = len(batch(b"x"))


class Reader:
    """Reads the three partitions of a topic, as a request without a session or with one."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic_id = broker.create_topic(NAME, 3).topic_id
        self.stats = ApiStats()

    def partition(self, index: int) -> Partition:
        found = self.broker.services.partitions.find(NAME, index)
        assert found is not None
        return found

    def append(self, index: int, *values: bytes) -> None:
        async def append() -> None:
            for value in values:
                self.partition(index).append(batch(value), NOW_MS)

        self.broker.run(append())

    def request(
        self,
        *asked: FetchPartition,
        max_bytes: int = 1 << 20,
        rack_id: str = "",
        replica_id: int = -1,
        session: tuple[int, int] = (0, -1),
        topic_id: TopicId | None = None,
    ) -> FetchRequest:
        topics = [FetchTopic("", topic_id or self.topic_id, list(asked))] if asked else []
        return FetchRequest(replica_id, -1, 500, 1, max_bytes, 0, *session, topics, [], rack_id)

    def plan(self, request: FetchRequest) -> FetchPlan:
        return self.broker.services.fetch_sessions.plan(request, uses_topic_ids=True, now_ms=NOW_MS)

    def read(self, request: FetchRequest) -> Reading:
        reading = Reading(
            self.broker.services, anybody(self.broker.services), self.stats, request, self.plan(request)
        )
        reading.read()
        return reading


@pytest.fixture
def reader(broker: Broker) -> Reader:
    return Reader(broker)


def at(
    index: int, offset: int = 0, *, epoch: int = -1, last_epoch: int = -1, max_bytes: int = 1 << 20
) -> FetchPartition:
    return FetchPartition(index, epoch, offset, last_epoch, -1, max_bytes)


def found(reading: Reading) -> list[PartitionData]:
    return [data for _, _, data in reading.results]


def sizes(reading: Reading) -> list[int]:
    return [0 if data.records is None else data.records.size_bytes for data in found(reading)]


def told(reading: Reading) -> list[int]:
    return [data.partition for topic in reading.topics_to_tell() for data in topic.partitions]


def test_one_limit_holds_for_all_partitions_and_one_for_each(reader: Reader) -> None:
    for index in range(3):
        reader.append(index, b"x", b"x", b"x")
    reading = reader.read(reader.request(at(0), at(1, max_bytes=2 * SIZE), at(2), max_bytes=6 * SIZE))
    assert sizes(reading) == [3 * SIZE, 2 * SIZE, SIZE]
    assert reading.size_bytes == 6 * SIZE
    assert not reading.is_urgent


def test_a_batch_over_the_limit_comes_whole_if_it_is_the_first(reader: Reader) -> None:
    for index in range(2):
        reader.append(index, b"x")
    reading = reader.read(reader.request(at(2), at(1), at(0), max_bytes=10))
    assert sizes(reading) == [0, SIZE, 0]


def test_the_broker_has_a_limit_as_well(reader: Reader) -> None:
    reader.append(0, b"x", b"x", b"x")
    services = reader.broker.services
    services.settings = replace(services.settings, fetch_bytes_max=2 * SIZE)
    assert sizes(reader.read(reader.request(at(0)))) == [2 * SIZE]


def test_what_is_not_here_is_an_error_that_does_not_wait(reader: Reader) -> None:
    reading = reader.read(reader.request(at(0), at(7)))
    assert [data.error_code for data in found(reading)] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert reading.is_urgent
    assert reading.partitions == [reader.partition(0)]
    unknown = reader.read(reader.request(at(0), topic_id=TopicId(bytes(15) + b"\1")))
    assert found(unknown)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert reader.stats.errors == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1,
        ErrorCode.UNKNOWN_TOPIC_ID: 1,
    }


def test_an_offset_beyond_the_end_is_out_of_range_for_the_leader_only(reader: Reader) -> None:
    partition = reader.partition(0)
    assert found(reader.read(reader.request(at(0, 5))))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.stats.fetches_failed == 1
    partition.follow(2, partition.leader_epoch + 1)
    # The leader may have it. A follower serves consumers that name their rack.
    beyond = found(reader.read(reader.request(at(0, 5), rack_id="r2")))[0]
    assert beyond.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    elsewhere = found(reader.read(reader.request(at(0))))[0]
    assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert elsewhere.current_leader == (2, partition.leader_epoch)


def test_a_consumer_of_another_term_is_told_who_leads(reader: Reader) -> None:
    partition = reader.partition(0)
    partition.lead(1, 5)
    for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        (data,) = found(reader.read(reader.request(at(0, epoch=epoch))))
        assert (data.error_code, data.current_leader) == (code, (1, 5))


def test_a_log_that_went_another_way_is_told_where(reader: Reader) -> None:
    reader.partition(0).lead(1, 5)
    reader.append(0, b"x")
    reading = reader.read(reader.request(at(0, 9, last_epoch=5)))
    assert found(reading)[0].diverging_epoch == (5, 1)
    assert reading.is_urgent


def test_who_pretends_to_be_a_replica_gets_nothing(reader: Reader) -> None:
    reader.append(0, b"x")
    (data,) = found(reader.read(reader.request(at(0), replica_id=3)))
    assert (data.error_code, data.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, None)


def test_a_session_is_told_what_it_does_not_know(reader: Reader) -> None:
    reader.append(0, b"x")
    request = reader.request(at(0), at(1), at(2), session=(0, 0))
    first = reader.read(request)
    assert told(first) == [0, 1, 2], "a full answer names every partition"
    (session_id,) = reader.broker.services.fetch_sessions._sessions

    def next_told(epoch: int, *asked: FetchPartition) -> list[int]:
        return told(reader.read(reader.request(*asked, session=(session_id, epoch))))

    assert next_told(1, at(0, 1)) == []
    reader.append(2, b"y")
    assert next_told(2) == [2], "records"
    assert next_told(3, at(2, 1)) == []
    reader.append(1, b"z")
    assert next_told(4, at(1, 1)) == [1], "a high watermark"
    assert next_told(5, at(1, 9)) == [1], "an error"
    assert next_told(6) == [1], "which is told until the consumer asks otherwise"


def test_a_session_is_told_which_replica_to_read_from(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that leaves it out would be empty and immediate, and the consumer would ask without end."""
    request = reader.request(at(0), session=(0, 0), rack_id="r2")
    assert told(reader.read(request)) == [0]
    (session_id,) = reader.broker.services.fetch_sessions._sessions
    lead_followers(reader.partition(0))
    monkeypatch.setattr(type(reader.broker.services), "read_replica", lambda *_: 3)
    reading = reader.read(reader.request(session=(session_id, 1), rack_id="r2"))
    assert found(reading)[0].preferred_read_replica == 3
    assert reading.is_urgent
    assert told(reading) == [0]
