"""TxnOffsetCommit as clients of each version see it."""

from __future__ import annotations

import pytest

from millrace.coordinator.errors import RecordsTooLarge
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.transactions.producers import NAME, end, init


def offset_commit(producer: tuple[int, int], offset: int = 5) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id=NAME,
        group_id="readers",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[
            TxnOffsetCommitRequestTopic(
                name="orders",
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset),
                    TxnOffsetCommitRequestPartition(partition_index=9, committed_offset=offset),
                ],
            )
        ],
    )


@pytest.mark.parametrize("version", range(6))
def test_offsets_are_part_of_a_transaction_that_has_the_group(coordinator: Broker, version: int) -> None:
    producer = init(coordinator)
    if version < 5:
        (topic,) = coordinator.ask(offset_commit(producer), version).topics
        expected = ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
        assert topic.partitions[0].error_code == expected
        request = AddOffsetsToTxnRequest(
            transactional_id=NAME, producer_id=producer[0], producer_epoch=producer[1], group_id="readers"
        )
        assert coordinator.ask(request, 4).error_code == 0
    (topic,) = coordinator.ask(offset_commit(producer), version).topics
    codes = [each.error_code for each in topic.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    machine = coordinator.groups.machine_of("readers")
    offsets = machine.offsets  # type: ignore[union-attr]  # it is loaded
    assert offsets.find("readers", "orders", 0) is None
    assert end(coordinator, producer, 5 if version == 5 else 4)[0] == 0
    committed = offsets.find("readers", "orders", 0)
    assert committed is not None
    assert committed.offset == 5


def test_whoever_names_no_group_or_no_transaction_is_refused(coordinator: Broker) -> None:
    producer = init(coordinator)
    without_group, without_name = offset_commit(producer), offset_commit(producer)
    without_group.group_id = ""
    without_name.transactional_id = ""
    for request, code in (
        (without_group, ErrorCode.INVALID_GROUP_ID),
        (without_name, ErrorCode.INVALID_REQUEST),
    ):
        (topic,) = coordinator.ask(request, 5).topics
        assert [each.error_code for each in topic.partitions] == [code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_fenced_producer_commits_nothing(coordinator: Broker) -> None:
    old = init(coordinator)
    init(coordinator)
    (topic,) = coordinator.ask(offset_commit(old), 5).topics
    assert topic.partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_without_partitions_that_exist_nothing_is_asked_of_anybody(coordinator: Broker) -> None:
    request = offset_commit((1, 1))
    request.topics[0].name = "absent"
    (topic,) = coordinator.ask(request, 5).topics
    assert {each.error_code for each in topic.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_offsets_that_fit_into_no_batch_are_the_clients_fault(
    coordinator: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = init(coordinator)
    refusal = RecordsTooLarge(10, size_bytes_max=5)
    monkeypatch.setattr(coordinator.groups, "submit", lambda group_id, command: refusal)
    (topic,) = coordinator.ask(offset_commit(producer), 5).topics
    assert topic.partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
