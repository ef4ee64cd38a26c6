"""A transactional producer, as requests, for the tests of the APIs of transactions."""

from __future__ import annotations

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from millrace.wire.messages.end_txn import EndTxnRequest
from millrace.wire.messages.init_producer_id import InitProducerIdRequest
from tests.unit.broker.handlers.broker import Broker

NAME = "payments"


def init(broker: Broker, version: int = 5) -> tuple[int, int]:
    request = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=60_000)
    response = broker.ask(request, version)
    if response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
        # What was open is aborted meanwhile.
        response = broker.ask(request, version)
    assert response.error_code == ErrorCode.NONE
    return response.producer_id, response.producer_epoch


def add(broker: Broker, producer: tuple[int, int], version: int, *names: str) -> list[int]:
    topics = [AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names or ("orders",)]
    if version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=topics,
        )
        found = broker.ask(request, version).results_by_topic_v3_and_below
    else:
        each = AddPartitionsToTxnTransaction(
            transactional_id=NAME, producer_id=producer[0], producer_epoch=producer[1], topics=topics
        )
        request = AddPartitionsToTxnRequest(transactions=[each])
        found = broker.ask(request, version).results_by_transaction[0].topic_results
    return [topic.results_by_partition[0].partition_error_code for topic in found]


def end(
    broker: Broker, producer: tuple[int, int], version: int, *, commit: bool = True
) -> tuple[int, int, int]:
    request = EndTxnRequest(
        transactional_id=NAME, producer_id=producer[0], producer_epoch=producer[1], committed=commit
    )
    response = broker.ask(request, version)
    return response.error_code, response.producer_id, response.producer_epoch
