"""A producer with several batches on their way, while this broker takes up and loses office: what follows a
refused batch never comes before it, and no gap makes the producer number anew what was stored."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.handlers.produce import refused_batches
from millrace.core.ids import TopicId
from millrace.log.state.producer_state import SEQUENCE_MAX
from millrace.replica.partition import Partition
from millrace.wire import schema
from millrace.wire.api_keys import ApiKey
from millrace.wire.batch_header import HEADER
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.wire.records import Record, build_batch, split_batches
from tests.unit.broker.handlers.broker import NODE_ID, NOW_MS, Broker
from tests.unit.broker.network.client import Client

TOPIC: Final = "orders"
PRODUCER: Final = 7
BUFFER_BYTES: Final = 1 << 16
OK: Final = ErrorCode.NONE
NOT_LEADER: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER
GAP: Final = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
IN_FLIGHT_MAX: Final = 5


class Producer:
    """Sends single records over a real connection whose transport keeps what it is given."""

    def __init__(self, broker: Broker, topic_id: TopicId | None = None, version: int = 10) -> None:
        self._topic_id = topic_id
        self._version = version
        client = Client(broker.services)
        self._transport, self.connection = client.transport, client.connection

    def send(
        self, sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER, copies: int = 1
    ) -> ErrorCode:
        """The answer to a batch. `copies`: for so many partitions, which takes another way through the
        broker."""
        is_idempotent = producer_id >= 0
        batch = build_batch(
            [Record(0, NOW_MS, None, b"%d" % sequence)],
            producer_id=producer_id,
            producer_epoch=epoch if is_idempotent else -1,
            base_sequence=sequence if is_idempotent else -1,
        )
        by_id = self._version >= 13
        topic = TopicProduceData(
            name="" if by_id else TOPIC,
            topic_id=(self._topic_id if by_id else None) or TopicId(bytes(16)),
            partition_data=[PartitionProduceData(index=index, records=batch) for index in range(copies)],
        )
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[topic])
        body = schema.request_encoder(ApiKey.PRODUCE, self._version)(request)
        frame = struct.pack(">hhihb", ApiKey.PRODUCE, self._version, 7, -1, 0) + body
        buffer = self.connection.get_buffer(-1)
        buffer[: len(frame) + 4] = struct.pack(">i", len(frame)) + frame
        self.connection.buffer_updated(len(frame) + 4)
        answer = b"".join(self._transport.writes)
        self._transport.writes.clear()
        decoded = schema.response_decoder(ApiKey.PRODUCE, self._version)(answer[9:])
        return ErrorCode(decoded.responses[0].partition_responses[0].error_code)


def found(broker: Broker, index: int = 0) -> Partition:
    partition = broker.services.partitions.find(TOPIC, index)
    assert partition is not None
    return partition


def stored(partition: Partition) -> list[tuple[int, int]]:
    """Producer epoch and sequence of every batch."""
    data = b"".join(path.read_bytes() for path in sorted(Path(partition.log.path).glob("*.log")))
    headers = [HEADER.unpack_from(batch) for batch in split_batches(memoryview(data))]
    return [(header[10], header[11]) for header in headers]


def lead(partition: Partition) -> None:
    partition.lead(NODE_ID, partition.leader_epoch + 1)


def follow(partition: Partition) -> None:
    partition.follow(2, partition.leader_epoch + 1)


def replicate(partition: Partition, sequence: int) -> None:
    """Another leader has stored a batch of the producer."""
    batch = build_batch(
        [Record(partition.log.log_end_offset, NOW_MS, None, b"%d" % sequence)],
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
        leader_epoch=partition.leader_epoch,
    )
    partition.log.append_replicated(memoryview(batch))


def played(broker: Broker, scene: Callable[[Partition, TopicId], None]) -> None:
    """On the broker's loop, with a topic of two partitions."""
    topic = broker.create_topic(TOPIC, 2)

    async def play() -> None:
        scene(found(broker), topic.topic_id)

    broker.run(play())


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("known", [0, 2])
def test_what_follows_a_refused_batch_is_refused_until_that_comes(
    broker: Broker, version: int, copies: int, known: int
) -> None:
    """Of a producer that is not known yet, too: else the next would be taken for its first, and librdkafka
    takes the answer to that for an answer to the first, which is lost."""

    def scene(partition: Partition, topic_id: TopicId) -> None:
        producer = Producer(broker, topic_id, version)
        for sequence in range(known):
            assert producer.send(sequence, copies=copies) == OK
        follow(partition)
        assert producer.send(known, copies=copies) == NOT_LEADER
        assert producer.send(known + 1, copies=copies) == NOT_LEADER
        lead(partition)
        assert producer.send(known + 2, copies=copies) == NOT_LEADER
        assert producer.send(known + 3, copies=copies) == NOT_LEADER
        for sequence in range(known, known + 4):
            assert producer.send(sequence, copies=copies) == OK
        assert stored(partition) == [(0, sequence) for sequence in range(known + 4)]
        assert producer.connection.refused_batches is None

    played(broker, scene)


def test_a_partition_that_appears_between_two_batches(broker: Broker) -> None:
    """As in the moments after a topic's creation."""

    async def too_early() -> Producer:
        producer = Producer(broker)
        assert producer.send(0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return producer

    producer = broker.run(too_early())
    broker.create_topic(TOPIC)

    async def in_time() -> None:
        assert producer.send(1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [producer.send(sequence) for sequence in (0, 1)] == [OK, OK]

    broker.run(in_time())
    assert stored(found(broker)) == [(0, 0), (0, 1)]


def test_a_refused_batch_that_another_leader_brought_holds_nobody_up(broker: Broker) -> None:
    def scene(partition: Partition, _topic_id: TopicId) -> None:
        producer = Producer(broker)
        assert producer.send(0) == OK
        follow(partition)
        assert [producer.send(sequence) for sequence in (1, 2)] == [NOT_LEADER] * 2
        for sequence in (1, 2):
            replicate(partition, sequence)
        lead(partition)
        assert producer.send(3) == OK

    played(broker, scene)


def test_of_several_refused_batches_another_leader_brought_the_first(broker: Broker) -> None:
    """The way in which a record came to be there twice: told of a gap behind batch 2, librdkafka numbers
    batch 1 anew, which is stored."""

    def scene(partition: Partition, _topic_id: TopicId) -> None:
        producer = Producer(broker)
        assert producer.send(0) == OK
        follow(partition)
        assert [producer.send(sequence) for sequence in (1, 2)] == [NOT_LEADER] * 2
        replicate(partition, 1)
        lead(partition)
        assert producer.send(3) == NOT_LEADER
        assert [producer.send(sequence) for sequence in (1, 2, 3)] == [OK] * 3
        assert stored(partition) == [(0, sequence) for sequence in range(4)]

    played(broker, scene)


def test_a_gap_that_no_batch_on_its_way_can_fill_is_told(broker: Broker) -> None:
    """What was acknowledged may be lost, after an election of somebody who did not have it."""

    def scene(partition: Partition, _topic_id: TopicId) -> None:
        producer = Producer(broker)
        assert producer.send(0) == OK
        follow(partition)
        assert producer.send(1) == NOT_LEADER
        lead(partition)
        answers = [producer.send(sequence) for sequence in range(50, 56)]
        assert answers == [NOT_LEADER] * (IN_FLIGHT_MAX - 1) + [GAP, GAP]

    played(broker, scene)


def test_others_are_not_held_up(broker: Broker) -> None:
    def scene(partition: Partition, _topic_id: TopicId) -> None:
        producer = Producer(broker)
        assert [producer.send(sequence) for sequence in (0, 1)] == [OK, OK]
        follow(partition)
        assert producer.send(2) == NOT_LEADER
        lead(partition)
        assert producer.send(0, producer_id=PRODUCER + 1) == OK
        assert producer.send(9, producer_id=-1) == OK
        # Sent again, since its answer did not come: it is from before the refused one.
        assert producer.send(1) == OK
        assert Producer(broker).send(3) == GAP, "another connection, on which nothing was refused"
        # The producer has given up what it numbered before.
        assert producer.send(0, epoch=1) == OK
        assert producer.connection.refused_batches is None
        assert stored(partition) == [(0, 0), (0, 1), (0, 0), (-1, -1), (1, 0)]

    played(broker, scene)


def test_sequences_that_wrap_around(broker: Broker) -> None:
    def scene(partition: Partition, _topic_id: TopicId) -> None:
        producer = Producer(broker)
        # A producer that is not known may begin anywhere.
        assert producer.send(SEQUENCE_MAX - 1) == OK
        follow(partition)
        assert producer.send(SEQUENCE_MAX) == NOT_LEADER
        lead(partition)
        assert producer.send(0) == NOT_LEADER
        assert [producer.send(sequence) for sequence in (SEQUENCE_MAX, 0)] == [OK, OK]

    played(broker, scene)


def test_those_who_went_elsewhere_are_forgotten(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "PRODUCERS_MAX", 3)

    def scene(partition: Partition, _topic_id: TopicId) -> None:
        producer = Producer(broker)
        follow(partition)
        for producer_id in range(5):
            assert producer.send(0, producer_id=producer_id) == NOT_LEADER
        lead(partition)
        assert [producer.send(1, producer_id=each) for each in range(5)] == [OK] * 2 + [NOT_LEADER] * 3

    played(broker, scene)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(("lead", "follow", "arrive", "arrive", "replicate")), max_size=60))
def test_a_producer_that_keeps_five_on_their_way_meets_no_gap(events: list[str]) -> None:
    """It sends again from the first without an acknowledgement, in order, once all are answered; and, like
    librdkafka, takes an acknowledgement for one of all that it sent before."""
    with TemporaryDirectory() as directory:
        broker = Broker(Path(directory))
        broker.start()
        try:
            played(broker, lambda partition, _: _five_on_their_way(broker, partition, events))
        finally:
            broker.stop()


def _five_on_their_way(broker: Broker, partition: Partition, events: list[str]) -> None:
    producer = Producer(broker)
    acknowledged = 0
    on_their_way: list[int] = []
    was_sent = 0
    for event in (*events, "lead", *("arrive" for _ in range(2 * IN_FLIGHT_MAX))):
        if event == "lead" and not partition.is_leader:
            lead(partition)
        elif event == "follow" and partition.is_leader:
            follow(partition)
        elif event == "replicate" and not partition.is_leader and partition.log.log_end_offset < was_sent:
            replicate(partition, partition.log.log_end_offset)
        elif event == "arrive":
            if not on_their_way:
                on_their_way = list(range(acknowledged, acknowledged + IN_FLIGHT_MAX))
                was_sent = max(was_sent, on_their_way[-1] + 1)
            sequence = on_their_way.pop(0)
            code = producer.send(sequence)
            assert code in (OK, NOT_LEADER), (code, sequence)
            if code == OK:
                acknowledged = max(acknowledged, sequence + 1)
                assert partition.log.log_end_offset >= acknowledged, "acknowledged and not there"
    assert acknowledged >= IN_FLIGHT_MAX
    assert stored(partition) == [(0, sequence) for sequence in range(partition.log.log_end_offset)]
