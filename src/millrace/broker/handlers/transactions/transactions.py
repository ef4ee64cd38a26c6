"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, DescribeTransactions and ListTransactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final

from millrace.broker.handlers.groups.answers import all_answered, answered
from millrace.broker.network.checks import on_cluster, on_group, on_topic, on_transactional_id
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.core.patterns import InvalidPattern, TopicPattern
from millrace.groups.service import OFFSETS_TOPIC
from millrace.log.state.transactions import EPOCH_PER_TRANSACTION, NO_TRANSACTION_VERSION, EndMarker
from millrace.metadata.topic_names import is_internal
from millrace.security.acls.binding import Operation, ResourceType
from millrace.transactions.commands import AddPartitions, Identity, VerifyPartitions
from millrace.transactions.errors import (
    EpochFenced,
    InvalidTransactionalId,
    PartitionNotInTransaction,
    UnknownTransactionalId,
)
from millrace.transactions.transaction import State, Transaction
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import describe_transactions as described
from millrace.wire.messages import list_transactions as listed
from millrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from millrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from millrace.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millrace.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger(__name__)

BATCHED_FROM: Final = 4
ABORTABLE_FROM: Final = 5
FENCED_FROM: Final = 2
OWN_EPOCHS_FROM: Final = 5
"""EndTxn of this version comes from clients of transaction version 2."""
MARKERS_ANSWERED_WITHIN_S: Final = 5.0
"""Shorter than other brokers wait for an answer: so they hear which markers are written, even if some are
not."""


def fenced_code(error: MillraceError, version: int, *, since: int = FENCED_FROM) -> ErrorCode:
    """The code of an error in this version: PRODUCER_FENCED is younger than these APIs, and before `since`
    another code has its meaning."""
    if isinstance(error, EpochFenced) and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error_code(error)


# AddPartitionsToTxn


def add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    version = ctx.api_version
    if version >= BATCHED_FROM:
        if not ctx.decisions.allows_on_cluster(Operation.CLUSTER_ACTION):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        transactions = request.transactions
    else:
        transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
        ]

    def respond(outcomes: Sequence[Outcome]) -> AddPartitionsToTxnResponse:
        results = [
            _added(
                each,
                {}
                if outcome is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                else _refused(ctx, each, version),
                outcome,
                version,
            )
            for each, outcome in zip(transactions, outcomes, strict=True)
        ]
        if version >= BATCHED_FROM:
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)

    return all_answered([_add(ctx, each, version) for each in transactions], respond)


def _add(ctx: RequestContext, asked: AddPartitionsToTxnTransaction, version: int) -> Outcome | Answer:
    name = asked.transactional_id
    if version < BATCHED_FROM and not ctx.decisions.allows_on_transactional_id(Operation.WRITE, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not name:
        return InvalidTransactionalId()
    producer = Identity(asked.producer_id, asked.producer_epoch)
    places = [TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions]
    if asked.verify_only:
        return ctx.services.transactions.submit(name, VerifyPartitions(name, producer, places))
    if _refused(ctx, asked, version):
        # All or nothing: the producer is told which ones it cannot have, and that the others were not tried.
        return ErrorCode.OPERATION_NOT_ATTEMPTED
    command = AddPartitions(
        transactional_id=name,
        producer=producer,
        partitions=places,
        # Only brokers send several transactions, for producers whose writes add partitions by themselves.
        transaction_version=EPOCH_PER_TRANSACTION if version >= BATCHED_FROM else NO_TRANSACTION_VERSION,
    )
    return ctx.services.transactions.submit(name, command)


def _refused(
    ctx: RequestContext, asked: AddPartitionsToTxnTransaction, version: int
) -> dict[tuple[str, int], ErrorCode]:
    """Partitions that cannot take part in a transaction. Those of internal topics are only for brokers to
    add; clients use the versions before `BATCHED_FROM`."""
    if asked.verify_only:
        return {}
    image = ctx.services.metadata.image
    refused: dict[tuple[str, int], ErrorCode] = {}
    for topic in asked.topics:
        for index in topic.partitions:
            if version < BATCHED_FROM and (
                is_internal(topic.name) or not ctx.decisions.allows_on_topic(Operation.WRITE, topic.name)
            ):
                refused[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(topic.name, index) is None:
                refused[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _added(
    asked: AddPartitionsToTxnTransaction,
    refused: dict[tuple[str, int], ErrorCode],
    outcome: Outcome,
    version: int,
) -> AddPartitionsToTxnResult:
    code = ErrorCode.NONE
    if isinstance(outcome, ErrorCode):
        code = outcome
    elif isinstance(outcome, PartitionNotInTransaction) and version < ABORTABLE_FROM:
        code = ErrorCode.INVALID_TXN_STATE
    elif isinstance(outcome, MillraceError):
        code = fenced_code(outcome, version)

    def result(topic: AddPartitionsToTxnTopic, index: int) -> AddPartitionsToTxnPartitionResult:
        return AddPartitionsToTxnPartitionResult(
            partition_index=index, partition_error_code=refused.get((topic.name, index), code)
        )

    return AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name, results_by_partition=[result(topic, index) for index in topic.partitions]
            )
            for topic in asked.topics
        ],
    )


def add_offsets_to_txn(
    ctx: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    version = ctx.api_version
    if not ctx.decisions.allows_on_transactional_id(Operation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not ctx.decisions.allows_on_group(Operation.READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    index = ctx.services.groups.partition_of(request.group_id)
    if not request.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    if index is None:
        # Whoever looks for the group's coordinator has the topic created.
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    command = AddPartitions(
        transactional_id=request.transactional_id,
        producer=Identity(request.producer_id, request.producer_epoch),
        partitions=(TopicPartition(OFFSETS_TOPIC, index),),
        transaction_version=NO_TRANSACTION_VERSION,
    )

    def respond(outcome: Outcome) -> AddOffsetsToTxnResponse:
        if isinstance(outcome, MillraceError):
            return AddOffsetsToTxnResponse(error_code=fenced_code(outcome, version))
        return AddOffsetsToTxnResponse()

    return answered(ctx.services.transactions.submit(request.transactional_id, command), respond)


# Ending


async def end_txn(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    version = ctx.api_version
    if not ctx.decisions.allows_on_transactional_id(Operation.WRITE, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not request.transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        outcome = await ctx.services.transactions.end(
            request.transactional_id,
            Identity(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            transaction_version=(
                EPOCH_PER_TRANSACTION if version >= OWN_EPOCHS_FROM else NO_TRANSACTION_VERSION
            ),
        )
    except MillraceError as error:
        outcome = error
    if isinstance(outcome, MillraceError):
        return EndTxnResponse(error_code=fenced_code(outcome, version))
    assert isinstance(outcome, Identity), outcome
    return EndTxnResponse(producer_id=outcome.producer_id, producer_epoch=outcome.epoch)


async def write_txn_markers(ctx: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    decisions = ctx.decisions
    if not decisions.shows_on_cluster(Operation.ALTER) and not decisions.allows_on_cluster(
        Operation.CLUSTER_ACTION
    ):
        return _no_markers(request)
    response = WriteTxnMarkersResponse()
    waits: list[asyncio.Future[MillraceError | None]] = []
    places: list[WritableTxnMarkerPartitionResult] = []
    loop = asyncio.get_running_loop()
    for asked in request.markers:
        result = WritableTxnMarkerResult(producer_id=asked.producer_id)
        response.markers.append(result)
        marker = EndMarker(
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            asked.transaction_version,
        )
        for topic in asked.topics:
            answer = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(answer)
            for index in topic.partition_indexes:
                wait: asyncio.Future[MillraceError | None] = loop.create_future()
                ctx.services.markers.write_for_peer(
                    TopicPartition(topic.name, index), marker, wait.set_result
                )
                place = WritableTxnMarkerPartitionResult(partition_index=index)
                answer.partitions.append(place)
                places.append(place)
                waits.append(wait)
    try:
        async with asyncio.timeout(MARKERS_ANSWERED_WITHIN_S):
            for wait in waits:
                # Shielded, since the partition sets the result later, also when nobody waits any more.
                await asyncio.shield(wait)
    except TimeoutError:
        log.info("markers wait for replicas; their coordinator will ask again")
    for place, wait in zip(places, waits, strict=True):
        if not wait.done():
            place.error_code = ErrorCode.REQUEST_TIMED_OUT
        elif (error := wait.result()) is not None:
            place.error_code = error_code(error)
    return response


def _no_markers(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=asked.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in asked.topics
                ],
            )
            for asked in request.markers
        ]
    )


# Describing and listing


def describe_transactions(
    ctx: RequestContext, request: described.DescribeTransactionsRequest
) -> described.DescribeTransactionsResponse:
    return described.DescribeTransactionsResponse(
        transaction_states=[_described(ctx, name) for name in request.transactional_ids]
    )


def _described(ctx: RequestContext, name: str) -> described.TransactionState:
    if not ctx.decisions.allows_on_transactional_id(Operation.DESCRIBE, name):
        return described.TransactionState(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id=name
        )
    if not name:
        return described.TransactionState(error_code=ErrorCode.INVALID_REQUEST)
    found = ctx.services.transactions.find(name)
    if found is None:
        found = UnknownTransactionalId(name)
    if isinstance(found, MillraceError):
        return described.TransactionState(error_code=error_code(found), transactional_id=name)
    topics: dict[str, described.TopicData] = {}
    for topic, index in found.partitions:
        if not ctx.decisions.shows(Operation.DESCRIBE, ResourceType.TOPIC, topic):
            continue
        topics.setdefault(topic, described.TopicData(topic=topic)).partitions.append(index)
    return described.TransactionState(
        transactional_id=name,
        transaction_state=found.state.name,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms if found.partitions else -1,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=list(topics.values()),
    )


def list_transactions(
    ctx: RequestContext, request: listed.ListTransactionsRequest
) -> listed.ListTransactionsResponse:
    transactions = ctx.services.transactions
    if transactions.runtime.is_loading:
        return listed.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    matched: frozenset[str] | None = None
    if request.transactional_id_pattern:
        try:
            pattern = TopicPattern(request.transactional_id_pattern)
        except InvalidPattern:
            return listed.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        *_, matched = pattern.resolve(each.transactional_id for each in transactions.all())
    names = State.__members__
    wanted = [names[name] for name in request.state_filters if name in names]
    now_ms = ctx.services.clock.wall_ms()

    def is_wanted(each: Transaction) -> bool:
        return (
            (not request.state_filters or each.state in wanted)
            and (not request.producer_id_filters or each.producer_id in request.producer_id_filters)
            and (
                request.duration_filter < 0
                or (each.started_ms >= 0 and now_ms - each.started_ms > request.duration_filter)
            )
            and (matched is None or each.transactional_id in matched)
            and ctx.decisions.shows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
        )

    return listed.ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in names],
        transaction_states=[
            listed.TransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.name,
            )
            for each in transactions.all()
            if is_wanted(each)
        ],
    )


# v4 takes several transactions at once, from brokers, and can only verify; v5 has an error that aborts.
ADD_PARTITIONS_TO_TXN: Final = Api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    handle=add_partitions_to_txn,
    checks=(
        on_cluster(Operation.CLUSTER_ACTION, "versions from 4"),
        on_transactional_id(Operation.WRITE, "versions to 3"),
        on_topic(Operation.WRITE, "versions to 3"),
    ),
)
ADD_OFFSETS_TO_TXN: Final = Api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    handle=add_offsets_to_txn,
    checks=(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
)
# v5 answers with the identity of the next transaction.
END_TXN: Final = Api(
    ApiKey.END_TXN, versions=(0, 5), handle=end_txn, checks=(on_transactional_id(Operation.WRITE),)
)
# v2 says which version of the transaction protocol the marker belongs to.
WRITE_TXN_MARKERS: Final = Api(
    ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    handle=write_txn_markers,
    checks=(on_cluster(Operation.ALTER), on_cluster(Operation.CLUSTER_ACTION, "or this one")),
)
DESCRIBE_TRANSACTIONS: Final = Api(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    handle=describe_transactions,
    checks=(on_transactional_id(Operation.DESCRIBE), on_topic(Operation.DESCRIBE, "of its topics")),
)
# v1 filters by duration, v2 by a pattern.
LIST_TRANSACTIONS: Final = Api(
    ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    handle=list_transactions,
    checks=(on_transactional_id(Operation.DESCRIBE, "for each"),),
)
