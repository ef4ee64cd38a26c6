"""A consumer at the end of its partition asks for the same again and again, and is served by a short way.

What it gets must be, to the byte, what one gets who asks for the first time once the records are there.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.handlers.fetch import request as fetch_requests
from millrace.broker.handlers.fetch.serving import SMALL_ANSWER_BYTES
from millrace.broker.network.lookout import SMALL_BATCH_BYTES, Lookout
from millrace.broker.network.pace import BURST_BYTES, LARGE_ANSWER_BYTES, Pace
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.log.errors import TooManyOpenFiles
from millrace.log.partition.appending import STAGED
from millrace.log.partition.partition_log import PartitionLog
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.wire import fetch_codec, schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.fetch_codec import FLEXIBLE_FROM, TOPIC_IDS_FROM
from millrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.network.client import Client

TOPIC: Final = "followed"
WAIT_MS: Final = 60_000
BUFFER_BYTES: Final = 1 << 16


class Consumer:
    """Follows one partition over a real connection whose transport keeps what it is given."""

    def __init__(self, broker: Broker, topic_id: TopicId, version: int, **wishes: Any) -> None:
        self._topic_id = topic_id
        self._version = version
        self._wishes = wishes
        self.session_id = 0
        self.session_epoch = -1
        client = Client(broker.services)
        self._transport, self.connection = client.transport, client.connection

    def ask(self, offset: int, **changes: Any) -> None:
        by_id = self._version >= TOPIC_IDS_FROM
        partition = FetchPartition(
            partition=0,
            current_leader_epoch=changes.pop("leader_epoch", -1),
            fetch_offset=offset,
            partition_max_bytes=changes.pop("partition_max_bytes", 1 << 20),
        )
        topic = FetchTopic(
            topic="" if by_id else TOPIC,
            topic_id=self._topic_id if by_id else TopicId(bytes(16)),
            partitions=[partition],
        )
        fields = {"max_wait_ms": WAIT_MS, "min_bytes": 1, "max_bytes": 1 << 20, **self._wishes, **changes}
        request = FetchRequest(
            session_id=self.session_id, session_epoch=self.session_epoch, topics=[topic], **fields
        )
        body = schema.request_encoder(ApiKey.FETCH, self._version)(request)
        # Api, version, correlation id, no client id, no tags.
        head = struct.pack(">hhihb", ApiKey.FETCH, self._version, 7, -1, 0)
        frame = (head if self._version >= FLEXIBLE_FROM else head[:-1]) + body
        self.receive(frame)

    def receive(self, frame: bytes) -> None:
        buffer = self.connection.get_buffer(-1)
        buffer[: len(frame) + 4] = struct.pack(">i", len(frame)) + frame
        self.connection.buffer_updated(len(frame) + 4)

    def answer(self) -> bytes | None:
        """What has come since, as one piece."""
        written = b"".join(self._transport.writes)
        self._transport.writes.clear()
        return written or None

    def decoded(self) -> Any:
        answer = self.answer()
        assert answer is not None
        # Length, correlation id, tags.
        return schema.response_decoder(ApiKey.FETCH, self._version)(answer[9:])


class Followed(NamedTuple):
    broker: Broker
    topic_id: TopicId
    partition: Partition

    def consumer(self, version: int = 17, **wishes: Any) -> Consumer:
        return Consumer(self.broker, self.topic_id, version, **wishes)

    def first_answer(self, offset: int, version: int, **wishes: Any) -> bytes:
        """What somebody gets who has not asked before."""
        other = self.consumer(version, **wishes)
        other.ask(offset)
        answer = other.answer()
        other.connection.connection_lost(None)
        assert answer is not None
        return answer


def followed(broker: Broker) -> Followed:
    topic = broker.create_topic(TOPIC)
    partition = broker.services.partitions.find(TOPIC, 0)
    assert partition is not None
    return Followed(broker, topic.topic_id, partition)


def batch(*values: bytes, **fields: Any) -> memoryview:
    records = [Record(number, NOW_MS, None, value) for number, value in enumerate(values)]
    return memoryview(bytearray(build_batch(records, **fields)))


@pytest.fixture
def decoded_count(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many requests took the long way."""
    calls: list[int] = []
    decode = fetch_codec.decode_request

    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return decode(*arguments)

    monkeypatch.setattr(fetch_requests, "decode_request", counting)
    return lambda: len(calls)


@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_the_short_way_gives_what_the_long_way_gives(
    broker: Broker, version: int, isolation_level: int, decoded_count: Callable[[], int]
) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer(version, isolation_level=isolation_level)
        for offset in range(5):
            consumer.ask(offset)
            assert consumer.answer() is None
            assert decoded_count() == 1 + offset, "one for each newcomer"
            topic.partition.append(batch(b"%d" % offset), NOW_MS)
            await asyncio.sleep(0)
            answer = consumer.answer()
            assert answer == topic.first_answer(offset, version, isolation_level=isolation_level)

    broker.run(follow())
    assert topic.partition.stats.fetches == 10, "each is counted once, also if it waited"


@pytest.mark.parametrize("version", [4, 11])
def test_old_versions_take_the_long_way(
    broker: Broker, version: int, decoded_count: Callable[[], int]
) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer(version)
        for offset in range(3):
            consumer.ask(offset)
            topic.partition.append(batch(b"x"), NOW_MS)
            await asyncio.sleep(0)
            assert consumer.answer() == topic.first_answer(offset, version)

    broker.run(follow())
    assert decoded_count() == 6


def test_a_session_goes_on_and_its_epochs_are_checked(
    broker: Broker, decoded_count: Callable[[], int]
) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer()
        consumer.session_epoch = 0
        consumer.ask(0, max_wait_ms=0)
        consumer.session_id = consumer.decoded().session_id
        assert consumer.session_id
        for offset in range(4):
            consumer.session_epoch = offset + 1
            consumer.ask(offset)
            topic.partition.append(batch(b"%d" % offset), NOW_MS)
            await asyncio.sleep(0)
            answer = consumer.decoded()
            assert answer.session_id == consumer.session_id
            (part,) = answer.responses[0].partitions
            assert (part.high_watermark, part.last_stable_offset) == (offset + 1, offset + 1)
            assert part.records[:8] == struct.pack(">q", offset)
        assert decoded_count() == 2
        # An epoch that was used already, and one of the future.
        for epoch in (4, 6):
            consumer.session_epoch = epoch
            consumer.ask(4)
            assert consumer.decoded().error_code == 71  # INVALID_FETCH_SESSION_EPOCH
        consumer.session_epoch = 5
        consumer.ask(4)
        assert consumer.answer() is None

    broker.run(follow())


def test_a_session_that_is_gone_is_not_found_again(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer()
        consumer.session_epoch = 0
        consumer.ask(0, max_wait_ms=0)
        consumer.session_id = consumer.decoded().session_id
        consumer.session_epoch = 1
        consumer.ask(0)
        topic.partition.append(batch(b"x"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() is not None
        # Somebody ends it over another connection.
        other = topic.consumer()
        other.session_id = consumer.session_id
        other.ask(0, max_wait_ms=0)
        consumer.session_epoch = 2
        consumer.ask(1)
        assert consumer.decoded().error_code == 70  # FETCH_SESSION_ID_NOT_FOUND

    broker.run(follow())


def test_whoever_asks_for_more_bytes_waits_for_them(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        size = len(batch(b"x"))
        consumer = topic.consumer(min_bytes=size + 1)
        for offset in (0, 2):
            consumer.ask(offset)
            topic.partition.append(batch(b"x"), NOW_MS)
            await asyncio.sleep(0)
            assert consumer.answer() is None
            topic.partition.append(batch(b"x"), NOW_MS)
            await asyncio.sleep(0)
            assert consumer.answer() == topic.first_answer(offset, 17)

    broker.run(follow())


def test_a_batch_beyond_the_limits_comes_all_the_same(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        for wishes in ({"max_bytes": 10}, {"partition_max_bytes": 10}):
            consumer = topic.consumer()
            start = topic.partition.log.log_end_offset
            for offset in (start, start + 1):
                consumer.ask(offset, **wishes)
                topic.partition.append(batch(b"x"), NOW_MS)
                await asyncio.sleep(0)
                (part,) = consumer.decoded().responses[0].partitions
                assert part.records[:8] == struct.pack(">q", offset)

    broker.run(follow())


def test_batches_that_were_staged_come_together(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer()
        topic.partition.answer_staged = lambda *_outcome: None
        topic.partition.append(batch(b"opens the log"), NOW_MS)
        for offset in (1, 4):
            consumer.ask(offset)
            for _ in range(3):
                assert topic.partition.append(batch(b"x"), NOW_MS, token=object()) is STAGED
            assert consumer.answer() is None
            topic.partition.log.write_staged()
            await asyncio.sleep(0)
            assert consumer.answer() == topic.first_answer(offset, 17)

    broker.run(follow())


def test_nothing_of_an_open_transaction_is_shown(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        committed, uncommitted = topic.consumer(isolation_level=1), topic.consumer(isolation_level=0)
        for consumer in (committed, uncommitted):
            consumer.ask(0)
        topic.partition.append(batch(b"plain"), NOW_MS)
        await asyncio.sleep(0)
        for consumer in (committed, uncommitted):
            assert consumer.answer() is not None
            consumer.ask(1)
        records = batch(b"open", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        topic.partition.append_transactional(records, NOW_MS)
        await asyncio.sleep(0)
        assert committed.answer() is None
        assert uncommitted.answer() == topic.first_answer(1, 17)
        # Behind it: stored, and still not to be seen. Whoever reads on from there waits as well.
        topic.partition.append(batch(b"behind"), NOW_MS)
        await asyncio.sleep(0)
        assert committed.answer() is None

    broker.run(follow())


def test_who_asks_for_a_topic_that_was_deleted_is_told_so(broker: Broker) -> None:
    topic = followed(broker)
    consumers: list[Consumer] = []

    async def follow() -> None:
        consumer = topic.consumer()
        consumers.append(consumer)
        consumer.ask(0)
        topic.partition.append(batch(b"x"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() is not None

    async def ask_again() -> None:
        consumers[0].ask(1)
        (part,) = consumers[0].decoded().responses[0].partitions
        assert part.error_code == 100  # UNKNOWN_TOPIC_ID

    broker.run(follow())
    broker.run(broker.metadata.delete_topics([TOPIC]))
    broker.run(ask_again())


def test_a_new_leader_epoch_ends_the_short_way(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        epoch = topic.partition.leader_epoch
        consumer = topic.consumer()
        consumer.ask(0, leader_epoch=epoch)
        topic.partition.append(batch(b"x"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() is not None
        topic.partition.lead(1, epoch + 1)
        consumer.ask(1, leader_epoch=epoch)
        (part,) = consumer.decoded().responses[0].partitions
        assert part.error_code == 74  # FENCED_LEADER_EPOCH

    broker.run(follow())


def test_two_requests_at_once_are_both_answered(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer()
        consumer.ask(0)
        topic.partition.append(batch(b"x"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() is not None
        consumer.ask(1)
        consumer.ask(1)
        topic.partition.append(batch(b"y"), NOW_MS)
        await asyncio.sleep(0)
        assert consumer.answer() == 2 * topic.first_answer(1, 17)

    broker.run(follow())


def test_a_connection_that_ends_leaves_nobody_waiting(broker: Broker) -> None:
    topic = followed(broker)

    async def follow() -> None:
        consumer = topic.consumer()
        for offset in range(2):
            consumer.ask(offset)
            topic.partition.append(batch(b"x"), NOW_MS)
            await asyncio.sleep(0)
        consumer.ask(2)
        assert len(topic.partition.fetch_waiters) == 1
        consumer.connection.connection_lost(None)
        assert len(topic.partition.fetch_waiters) == 0
        assert broker.services.recognition.entries_count == 0

    broker.run(follow())


class Expecting(Lookout):
    """Counts how often more is expected, instead of looking for it."""

    def __init__(self) -> None:
        super().__init__(float, 0.0)
        self.count = 0

    @override
    def expect_more(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count += 1


def lead_followers(partition: Partition) -> None:
    """With a follower that has not fetched yet."""
    leadership = Leadership(1, leader_epoch=1, epoch_start_offset=0, lag_ms_max=30_000, now_ms=0)
    leadership.update(replicas=(1, 2), isr=(1, 2), partition_epoch=1, now_ms=0)
    partition.lead_replicas(leadership)


@pytest.mark.parametrize("value_bytes, expected", [(100, 1), (2 * SMALL_BATCH_BYTES, 0)])
@pytest.mark.parametrize("has_followers", [False, True])
def test_only_after_a_small_batch_the_next_is_looked_for(
    broker: Broker, value_bytes: int, expected: int, has_followers: bool
) -> None:
    """Of a follower it is the next fetch, for which the producer waits."""
    topic = followed(broker)
    broker.services.lookout = lookout = Expecting()
    if has_followers:
        lead_followers(topic.partition)

    async def send() -> None:
        producer = topic.consumer()
        part = PartitionProduceData(index=0, records=bytes(batch(bytes(value_bytes))))
        request = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])]
        )
        body = schema.request_encoder(ApiKey.PRODUCE, 12)(request)
        producer.receive(struct.pack(">hhihb", ApiKey.PRODUCE, 12, 7, -1, 0) + body)
        assert (producer.answer() is None) == has_followers

    broker.run(send())
    assert topic.partition.log.log_end_offset == 1
    assert lookout.count == expected


@pytest.mark.parametrize(
    "value_bytes, expected", [(100, 1), (SMALL_ANSWER_BYTES - 1_000, 1), (SMALL_ANSWER_BYTES, 0)]
)
def test_only_after_a_small_answer_the_next_request_is_looked_for(
    broker: Broker, value_bytes: int, expected: int
) -> None:
    topic = followed(broker)
    topic.partition.append(batch(bytes(value_bytes)), NOW_MS)
    broker.services.lookout = lookout = Expecting()

    async def read() -> None:
        consumer = topic.consumer()
        consumer.ask(0)
        assert consumer.answer() is not None
        consumer.ask(1)
        assert consumer.answer() is None, "it waits at the end, where nothing is looked for"

    broker.run(read())
    assert lookout.count == expected


BATCH_BYTES: Final = 2 * LARGE_ANSWER_BYTES


class Holding(Pace):
    """Would hold every answer back for a moment."""

    held_s = 0.001

    @override
    def hold_s(self, now: float) -> float:
        return self.held_s


async def answer_of(consumer: Consumer) -> bytes:
    async with asyncio.timeout(5):
        while (answer := consumer.answer()) is None:
            await asyncio.sleep(0.001)
    return answer


def long_topic(broker: Broker, *first: bytes) -> Followed:
    """With so much behind its first batches that who reads those is catching up."""
    topic = followed(broker)
    for value in first:
        topic.partition.append(batch(value), NOW_MS)
    for _ in range(BURST_BYTES // BATCH_BYTES + 2):
        topic.partition.append(batch(bytes(BATCH_BYTES)), NOW_MS)
    return topic


def test_a_held_answer_is_the_same(broker: Broker) -> None:
    topic = long_topic(broker)

    async def read() -> None:
        consumer = topic.consumer()
        consumer.connection.out.pace = Holding(0.0)
        consumer.ask(0)
        assert consumer.answer() is None
        assert await answer_of(consumer) == topic.first_answer(0, 17)

    broker.run(read())


def test_nobody_is_held_longer_than_it_would_wait_for_records(broker: Broker) -> None:
    topic = long_topic(broker)

    async def read() -> None:
        consumer = topic.consumer(max_wait_ms=1)
        consumer.connection.out.pace = Holding(0.0)
        consumer.connection.out.pace.held_s = 60.0
        consumer.ask(0)
        assert await answer_of(consumer) == topic.first_answer(0, 17)

    broker.run(read())


def test_a_connection_may_end_while_its_answer_is_held(broker: Broker) -> None:
    topic = long_topic(broker)

    async def read() -> None:
        consumer = topic.consumer()
        consumer.connection.out.pace = Holding(0.0)
        consumer.ask(0)
        consumer.connection.connection_lost(None)
        await asyncio.sleep(0.005)
        assert consumer.answer() is None

    broker.run(read())


def test_a_small_answer_is_not_held(broker: Broker) -> None:
    topic = long_topic(broker, b"small")

    async def read() -> None:
        consumer = topic.consumer()
        consumer.connection.out.pace = Holding(0.0)
        consumer.ask(0, partition_max_bytes=1_000)
        assert consumer.answer() is not None

    broker.run(read())


def test_nobody_is_held_near_the_end_of_a_log(broker: Broker) -> None:
    topic = long_topic(broker)

    async def read() -> None:
        consumer = topic.consumer()
        consumer.connection.out.pace = Holding(0.0)
        consumer.ask(topic.partition.log.log_end_offset - 2)
        assert consumer.answer() is not None

    broker.run(read())


def test_nothing_is_held_where_that_is_switched_off(broker: Broker) -> None:
    topic = long_topic(broker)
    broker.services.settings = replace(broker.services.settings, paces_fetches=False)

    async def read() -> None:
        consumer = topic.consumer()
        consumer.connection.out.pace = Holding(0.0)
        consumer.ask(0)
        assert consumer.answer() is not None

    broker.run(read())


def test_only_large_answers_to_one_who_catches_up_make_a_pace(broker: Broker) -> None:
    topic = long_topic(broker)
    end = topic.partition.log.log_end_offset

    async def read() -> None:
        consumer = topic.consumer()
        consumer.ask(0)
        assert consumer.connection.out.pace is not None
        at_end = topic.consumer()
        at_end.ask(end - 1)
        assert at_end.answer() is not None
        assert at_end.connection.out.pace is None
        small = topic.consumer()
        topic.partition.append(batch(b"small"), NOW_MS)
        small.ask(end)
        assert small.answer() is not None
        assert small.connection.out.pace is None

    broker.run(read())


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["one", "two", "large", "staged", "none", "seek"]), st.integers(1, 2_000)),
        max_size=12,
    ),
    version=st.integers(12, 18),
    isolation_level=st.integers(0, 1),
)
def test_whatever_comes_the_consumer_sees_the_log(
    steps: list[tuple[str, int]], version: int, isolation_level: int
) -> None:
    with TemporaryDirectory() as directory:
        broker = Broker(Path(directory))
        broker.start()
        topic = followed(broker)

        async def follow() -> None:
            partition = topic.partition
            partition.answer_staged = lambda *_outcome: None
            partition.append(batch(b"opens the log"), NOW_MS)
            consumer = topic.consumer(version, isolation_level=isolation_level)
            offset = 0
            for kind, size in steps:
                consumer.ask(offset, max_wait_ms=0 if kind == "none" else WAIT_MS)
                waits = kind != "none" and offset == partition.log.log_end_offset
                assert (consumer.answer() is None) == waits
                value = bytes(20_000 if kind == "large" else size)
                for _ in range(2 if kind == "two" else 1):
                    token = object() if kind == "staged" else None
                    partition.append(batch(value), NOW_MS, token=token)
                partition.log.write_staged()
                for _ in range(3):
                    await asyncio.sleep(0)
                if waits:
                    # Sees all of it: whoever is woken reads when the turn is over.
                    answer = consumer.answer()
                    assert answer == topic.first_answer(offset, version, isolation_level=isolation_level)
                offset = partition.log.log_end_offset - (1 if kind == "seek" else 0)

        try:
            broker.run(follow())
        finally:
            broker.stop()


def test_a_waiting_reader_of_committed_records_is_told_when_their_index_cannot_be_opened(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer it would wait until its client gives up."""
    topic = followed(broker)

    def refuse(*_: object) -> None:
        raise TooManyOpenFiles("open", "an index", "too many open files")

    async def follow() -> None:
        consumer = topic.consumer(isolation_level=1)
        consumer.ask(0, min_bytes=100)
        topic.partition.append(batch(b"small"), NOW_MS)
        monkeypatch.setattr(PartitionLog, "aborted_transactions", refuse)
        topic.partition.append(batch(bytes(200)), NOW_MS)
        await asyncio.sleep(0)
        answered = consumer.decoded().responses[0].partitions[0]
        assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    broker.run(follow())
