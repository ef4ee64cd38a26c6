"""The APIs of transactions as clients of each version see them."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.handlers.produce.transaction_gate import ADDS_PARTITIONS_FROM, TransactionGate
from millrace.broker.handlers.transactions import transactions
from millrace.groups.service import OFFSETS_TOPIC
from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from millrace.transactions import markers
from millrace.transactions.service import TRANSACTION_TOPIC
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from millrace.wire.messages.list_transactions import ListTransactionsRequest
from millrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from millrace.wire.produce_codec import TopicRecords
from millrace.wire.records import Record, build_batch
from tests.unit.broker.handlers.broker import NOW_MS, Broker
from tests.unit.broker.handlers.transactions.producers import NAME, add, end, init


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_of_every_version(coordinator: Broker, version: int) -> None:
    producer = init(coordinator, version)
    assert add(coordinator, producer, version) == [0]
    described = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[NAME]), 0)
    (state,) = described.transaction_states
    assert (state.transaction_state, state.topics[0].partitions) == ("Ongoing", [0])
    code, producer_id, epoch = end(coordinator, producer, version)
    assert code == 0
    if version >= 5:
        assert (producer_id, epoch) == (producer[0], producer[1] + 1)
    partition = coordinator.services.partitions.find("orders", 0)
    assert partition is not None
    assert partition.log.log_end_offset == 1, "the marker"


@pytest.mark.parametrize(
    "version, code", [(0, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_a_fenced_producer_is_told_so_in_the_words_of_its_version(
    coordinator: Broker, version: int, code: ErrorCode
) -> None:
    zombie = init(coordinator)
    init(coordinator)
    assert add(coordinator, zombie, version) == [code]
    assert end(coordinator, zombie, version)[0] == code
    request = AddOffsetsToTxnRequest(
        transactional_id=NAME, producer_id=zombie[0], producer_epoch=zombie[1], group_id="readers"
    )
    assert coordinator.ask(request, version).error_code == code


def test_one_missing_partition_keeps_the_others_out_too(coordinator: Broker) -> None:
    producer = init(coordinator)
    assert add(coordinator, producer, 3, "orders", "absent") == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_clients_do_not_take_internal_topics_into_a_transaction(coordinator: Broker) -> None:
    """A marker in them would be one more thing that their coordinators believe."""
    producer = init(coordinator)
    assert add(coordinator, producer, 3, "orders", "__consumer_offsets", "__transaction_state") == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]
    assert add(coordinator, producer, 4, "__consumer_offsets") == [0], "brokers do, for committed offsets"


def test_a_batch_for_an_internal_topic_does_not_take_it_into_the_transaction(coordinator: Broker) -> None:
    """It is refused when it is to be appended; and a transaction that had the partition would end with a
    marker in it. Since Produce of version 12 a batch alone is enough to add its partition."""
    producer_id, epoch = init(coordinator)
    batch = build_batch(
        [Record(0, NOW_MS, b"key", b"value")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    gate = TransactionGate(coordinator.transactions, NAME, ADDS_PARTITIONS_FROM)
    wanted: list[tuple[int, memoryview | None]] = [(0, memoryview(bytearray(batch)))]
    sent: list[TopicRecords] = [(name, None, wanted) for name in (OFFSETS_TOPIC, TRANSACTION_TOPIC, "orders")]

    async def enter() -> None:
        await asyncio.gather(*gate.enter(coordinator.services.partitions, sent))

    coordinator.run(enter())
    (state,) = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[NAME]), 0).transaction_states
    assert state.transaction_state == "Ongoing"
    assert [topic.topic for topic in state.topics] == ["orders"]


def test_listing_filters_by_state_producer_and_pattern(coordinator: Broker) -> None:
    producer = init(coordinator)
    add(coordinator, producer, 3)

    def names(**filters: object) -> list[str]:
        answer = coordinator.ask(ListTransactionsRequest(**filters), 2)  # type: ignore[arg-type]  # as given
        return [each.transactional_id for each in answer.transaction_states]

    assert names() == names(state_filters=["Ongoing"]) == names(transactional_id_pattern="pay.*") == [NAME]
    assert names(state_filters=["Empty"]) == names(producer_id_filters=[producer[0] + 1]) == []
    assert names(transactional_id_pattern="pay") == names(duration_filter=3_600_000) == []
    answer = coordinator.ask(ListTransactionsRequest(state_filters=["Odd"]), 2)
    assert answer.unknown_state_filters == ["Odd"]
    answer = coordinator.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("version", [1, 2])
def test_markers_can_be_written_from_outside(coordinator: Broker, version: int) -> None:
    topics = [
        WritableTxnMarkerTopic(name="orders", partition_indexes=[0, 7]),
        WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=[0]),
    ]
    request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=4, topics=topics)])
    (marker,) = coordinator.ask(request, version).markers
    assert [each.error_code for topic in marker.topics for each in topic.partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]


def marker_codes(broker: Broker, *indexes: int) -> list[int]:
    topics = [WritableTxnMarkerTopic(name="orders", partition_indexes=list(indexes))]
    sent = WritableTxnMarker(producer_id=4, topics=topics, transaction_version=2)
    (marker,) = broker.ask(WriteTxnMarkersRequest(markers=[sent]), 2).markers
    return [each.error_code for topic in marker.topics for each in topic.partitions]


def lead_with(broker: Broker, index: int, isr: tuple[int, ...], topic: str = "orders") -> Partition:
    """Let the broker lead a partition with a follower that does not fetch."""
    partition = broker.services.partitions.find(topic, index)
    assert partition is not None
    leadership = Leadership(1, leader_epoch=1, epoch_start_offset=0, lag_ms_max=30_000, now_ms=0)
    leadership.update(replicas=(1, 2), isr=isr, partition_epoch=1, now_ms=0)
    partition.lead_replicas(leadership)
    partition.require_replicas(min_insync=2)
    return partition


def follow_up(broker: Broker, partition: Partition) -> None:
    """The follower has everything."""

    async def fetch() -> None:
        end = partition.log.log_end_offset
        partition.replica_fetched(2, broker_epoch=1, offset=end, log_start_offset=0, now_ms=1)
        await asyncio.sleep(0)

    broker.run(fetch())


def test_a_transaction_is_complete_also_if_its_coordinator_had_too_few_replicas_meanwhile(
    coordinator: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction stayed prepared, and its producer waited, until the coordinator moved."""
    monkeypatch.setattr(markers, "COMPLETE_RETRY_S", 0.001)
    producer = init(coordinator)
    add(coordinator, producer, 4)
    orders = lead_with(coordinator, 0, isr=(1, 2))
    assert end(coordinator, producer, 5)[0] == 0
    index = coordinator.transactions.partition_of(NAME)
    assert index is not None
    state = lead_with(coordinator, index, isr=(1,), topic=TRANSACTION_TOPIC)
    follow_up(coordinator, orders)
    assert orders.log.high_watermark == 1, "the marker is committed"
    stored = state.log.log_end_offset
    assert state.leadership is not None
    state.leadership.update(replicas=(1, 2), isr=(1, 2), partition_epoch=2, now_ms=1)
    state.require_replicas()

    async def complete() -> None:
        # It is told again by a timer, and stored when the follower has it.
        while state.log.log_end_offset == stored:
            await asyncio.sleep(0.001)

    coordinator.run(complete())
    follow_up(coordinator, state)
    (described,) = coordinator.ask(
        DescribeTransactionsRequest(transactional_ids=[NAME]), 0
    ).transaction_states
    assert described.transaction_state == "CompleteCommit"


def test_a_coordinator_with_too_few_replicas_refuses_ends_without_loading_everything_again(
    coordinator: Broker,
) -> None:
    """The broker that is left has enough to do, and all its producers try again several times a second."""
    producer = init(coordinator)
    index = coordinator.transactions.partition_of(NAME)
    assert index is not None
    lead_with(coordinator, index, isr=(1,), topic=TRANSACTION_TOPIC)
    shard = coordinator.transactions.runtime.shards[index]
    assert add(coordinator, producer, 4) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert end(coordinator, producer, 5, commit=False)[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    coordinator.run(asyncio.sleep(0))
    assert coordinator.transactions.runtime.shards.get(index) is shard


def test_a_marker_is_refused_at_once_where_too_few_replicas_are_in_sync(coordinator: Broker) -> None:
    """It could not be committed before they are back, and meanwhile the coordinator's connection would carry
    no other answer; Kafka refuses it, too."""
    partition = lead_with(coordinator, 0, isr=(1,))
    assert marker_codes(coordinator, 0, 1) == [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE]
    assert partition.log.log_end_offset == 0


def test_markers_that_are_not_committed_in_time_do_not_hold_back_the_others(
    coordinator: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked would give the connection up, and leave it here for as long as the partition waits."""
    monkeypatch.setattr(transactions, "MARKERS_ANSWERED_WITHIN_S", 0.01)
    partition = lead_with(coordinator, 0, isr=(1, 2))
    assert marker_codes(coordinator, 0, 1) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]

    follow_up(coordinator, partition)
    assert partition.log.high_watermark == 1
    assert marker_codes(coordinator, 0) == [ErrorCode.NONE]


def test_unknown_names_are_told_apart(coordinator: Broker) -> None:
    answer = coordinator.ask(DescribeTransactionsRequest(transactional_ids=["nobody", ""]), 0)
    assert [each.error_code for each in answer.transaction_states] == [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    ]
    assert end(coordinator, (1, 0), 5)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
