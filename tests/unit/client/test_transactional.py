"""Producers of tasks: batches in sequence and each once, transactions that say when they are lost."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client import transactional
from millrace.client.broker_client import BrokerClient
from millrace.client.errors import BrokerRefused, ClientError, ConnectionFailed, InvalidOption
from millrace.client.transactional import (
    EncodedBatch,
    Fenced,
    Marker,
    ProducerIdentity,
    RecordTooLarge,
    TaskProducer,
    end_transaction,
    init_producer,
    read_marker,
)
from millrace.core.ids import TopicPartition
from millrace.wire.api_keys import ApiKey
from millrace.wire.batch_header import read_header
from millrace.wire.compression import Codec
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from millrace.wire.messages.end_txn import EndTxnResponse
from millrace.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from millrace.wire.messages.init_producer_id import InitProducerIdResponse
from millrace.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from millrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from millrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.unit.client.scripted_brokers import BOOTSTRAP, ScriptedBrokers, in_turn

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
PLAIN = ProducerIdentity(None, 7, 0)
OURS = ProducerIdentity("task-0", 7, 3)


class Coordinators(ScriptedBrokers):
    """Brokers that hold transactions, and log what is produced unless told what to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[TopicPartition, Any]] = []
        self.refusals: list[int] = []
        self.answers |= {
            ApiKey.FIND_COORDINATOR: in_turn(
                FindCoordinatorResponse(coordinators=[Coordinator(key="x", node_id=2, host="two", port=2)])
            ),
            ApiKey.PRODUCE: self.produce,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add,
            ApiKey.ADD_OFFSETS_TO_TXN: in_turn(AddOffsetsToTxnResponse()),
            ApiKey.TXN_OFFSET_COMMIT: self.commit_offset,
            ApiKey.END_TXN: in_turn(EndTxnResponse()),
        }

    def produce(self, request: Any, _node: int) -> Any:
        code = self.refusals.pop(0) if self.refusals else 0
        topics = []
        for topic in request.topic_data:
            answers = []
            for each in topic.partition_data:
                if code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self.log.append((TopicPartition(topic.name, each.index), read_header(each.records, 0)))
                answers.append(
                    PartitionProduceResponse(index=each.index, error_code=code, error_message="because")
                )
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceResponse(responses=topics)

    def add(self, request: Any, _node: int) -> Any:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(partition_index=number)
                        for number in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def commit_offset(self, request: Any, _node: int) -> Any:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=each.partition_index)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Coordinators:
    found = Coordinators()
    found.install(monkeypatch, transactional)
    return found


@pytest.fixture
def client(brokers: Coordinators) -> BrokerClient:
    return BrokerClient(BOOTSTRAP, timeout_ms=1000)


def producer(client: BrokerClient, identity: ProducerIdentity = PLAIN) -> TaskProducer:
    return TaskProducer(client, identity, timeout_ms=60_000)


def batch(partition: TopicPartition, count: int, payload: bytes = b"records") -> EncodedBatch:
    return EncodedBatch(partition, count, 100, 200, Codec.LZ4, payload)


def test_batches_of_a_partition_follow_each_other_in_sequence(
    brokers: Coordinators, client: BrokerClient
) -> None:
    ours = producer(client)
    ours.produce([batch(P0, 3), batch(P1, 2), batch(P0, 4)])
    ours.produce([batch(P0, 1)])
    assert [(each, header.base_sequence, header.records_count) for each, header in brokers.log] == [
        (P0, 0, 3),
        (P1, 0, 2),
        (P0, 3, 4),
        (P0, 7, 1),
    ]
    header = brokers.log[0][1]
    assert (header.producer_id, header.producer_epoch, header.last_offset_delta) == (7, 0, 2)
    assert (header.base_timestamp, header.max_timestamp) == (100, 200)
    assert header.attributes == Codec.LZ4
    assert not brokers.requests(ApiKey.ADD_PARTITIONS_TO_TXN)
    assert not ours.is_open


def test_a_batch_that_may_pass_is_sent_again_as_the_same(brokers: Coordinators, client: BrokerClient) -> None:
    brokers.refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    producer(client).produce([batch(P0, 3)])
    first, second = (
        each.topic_data[0].partition_data[0].records for each in brokers.requests(ApiKey.PRODUCE)
    )
    assert first == second
    assert brokers.slept == [0.02]


def test_a_lost_connection_is_tried_again_until_the_time_is_up(
    brokers: Coordinators, client: BrokerClient
) -> None:
    brokers.answers[ApiKey.PRODUCE] = in_turn(ConnectionFailed("lost"))
    with pytest.raises(ConnectionFailed, match="lost"):
        producer(client).produce([batch(P0, 3)])
    assert 0.5 < sum(brokers.slept) < 1
    assert brokers.slept == sorted(brokers.slept)


@pytest.mark.parametrize("code, identity, kind, words", [
    (ErrorCode.MESSAGE_TOO_LARGE, PLAIN, RecordTooLarge, "refuses 3 records, 68 bytes, in one batch"),
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, PLAIN, BrokerRefused, r"orders-0 \(because\)"),
    (ErrorCode.INVALID_PRODUCER_EPOCH, PLAIN, BrokerRefused, "orders-0"),
    (ErrorCode.INVALID_PRODUCER_EPOCH, OURS, Fenced, "the transaction of task-0 has been taken away.*=60000"),
])  # fmt: skip
def test_what_does_not_pass_is_told_at_once(
    code: int,
    identity: ProducerIdentity,
    kind: type[ClientError],
    words: str,
    brokers: Coordinators,
    client: BrokerClient,
) -> None:
    brokers.refusals = [code]
    with pytest.raises(kind, match=words):
        producer(client, identity).produce([batch(P0, 3)])
    assert brokers.slept == []


def test_one_record_that_is_too_large_needs_another_topic_or_no_place(
    brokers: Coordinators, client: BrokerClient
) -> None:
    brokers.refusals = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(RecordTooLarge, match=r"raise max\.message\.bytes of the topic"):
        producer(client).produce([batch(P0, 1)])


def test_a_transaction_takes_each_partition_in_once(brokers: Coordinators, client: BrokerClient) -> None:
    ours = producer(client, OURS)
    ours.produce([batch(P0, 1)])
    ours.produce([batch(P0, 1), batch(P1, 1)])
    added = brokers.requests(ApiKey.ADD_PARTITIONS_TO_TXN)
    assert [each.v3_and_below_topics[0].partitions for each in added] == [[0], [1]]
    assert all(header.is_transactional for _, header in brokers.log)
    assert ours.is_open


def test_a_mark_is_an_offset_of_the_group_inside_of_the_transaction(
    brokers: Coordinators, client: BrokerClient
) -> None:
    ours = producer(client, OURS)
    ours.mark("replay", P1, Marker(42, "note"))
    (group,) = brokers.requests(ApiKey.ADD_OFFSETS_TO_TXN)
    (commit,) = brokers.requests(ApiKey.TXN_OFFSET_COMMIT)
    marked = commit.topics[0].partitions[0]
    assert (group.group_id, commit.group_id, commit.transactional_id) == ("replay", "replay", "task-0")
    assert (marked.partition_index, marked.committed_offset, marked.committed_metadata) == (1, 42, "note")
    assert ours.is_open


def test_only_what_is_open_is_aborted_and_a_failure_of_that_is_not_told(
    brokers: Coordinators, client: BrokerClient
) -> None:
    ours = producer(client, OURS)
    ours.abort()
    assert not brokers.requests(ApiKey.END_TXN)
    ours.produce([batch(P0, 1)])
    brokers.answers[ApiKey.END_TXN] = in_turn(
        EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED), EndTxnResponse()
    )
    open_after = []
    for _ in range(2):
        ours.abort()
        open_after.append(ours.is_open)
    assert open_after == [True, False]
    assert [each.committed for each in brokers.requests(ApiKey.END_TXN)] == [False, False]


def test_a_commit_of_a_transaction_that_was_taken_away_is_fenced(
    brokers: Coordinators, client: BrokerClient
) -> None:
    brokers.answers[ApiKey.END_TXN] = in_turn(
        EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
        EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE),
    )
    with pytest.raises(Fenced):
        end_transaction(client, OURS, is_commit=True)
    assert len(brokers.requests(ApiKey.END_TXN)) == 2


def test_a_producer_gets_its_identity_from_the_coordinator(
    brokers: Coordinators, client: BrokerClient
) -> None:
    brokers.answers[ApiKey.INIT_PRODUCER_ID] = in_turn(
        InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
        InitProducerIdResponse(producer_id=9, producer_epoch=4),
        InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    )
    assert init_producer(client, "task-0", 1000) == ProducerIdentity("task-0", 9, 4)
    assert {node for node, key, _ in brokers.asked if key == ApiKey.INIT_PRODUCER_ID} == {2}
    with pytest.raises(InvalidOption, match=r"transaction\.timeout\.ms=1000 is more than the broker allows"):
        init_producer(client, "task-0", 1000)


@pytest.mark.parametrize("offset, marker", [(42, Marker(42, "note")), (-1, None)])
def test_a_marker_is_read_back_or_none(
    offset: int, marker: Marker | None, brokers: Coordinators, client: BrokerClient
) -> None:
    found = OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset, metadata="note")
    topics = [OffsetFetchResponseTopics(name="orders", partitions=[found])]
    brokers.answers[ApiKey.OFFSET_FETCH] = in_turn(
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])
    )
    assert read_marker(client, "g", P0) == marker
    assert read_marker(client, "g", P0, is_stable=False) == marker
    assert [each.require_stable for each in brokers.requests(ApiKey.OFFSET_FETCH)] == [True, False]
