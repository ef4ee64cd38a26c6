"""TxnOffsetCommit: how far a group has read, as part of a producer's transaction."""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.broker.handlers.groups.commit_places import CommitPlaces, commit_error_code
from millrace.broker.network.checks import on_group, on_topic, on_transactional_id
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.coordinator.decision import Producer
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable
from millrace.coordinator.runtime import Outcome
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.groups.commands import (
    CommitInTransaction,
    CommitOffsets,
    OffsetToCommit,
)
from millrace.groups.errors import InvalidGroupId
from millrace.groups.service import OFFSETS_TOPIC
from millrace.log.state.transactions import EPOCH_PER_TRANSACTION
from millrace.replica.partition import Partition
from millrace.security.acls.binding import Operation
from millrace.security.acls.decisions import Decisions
from millrace.transactions.commands import AddPartitions, Identity, VerifyPartitions
from millrace.transactions.errors import EpochFenced, InvalidTransactionalId, PartitionNotInTransaction
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ADDS_ITSELF_FROM: Final = 5
ABORTABLE_FROM: Final = 4


async def txn_offset_commit(ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    image = ctx.services.metadata.image
    response = TxnOffsetCommitResponse()
    commit = CommitPlaces()
    refusal = _refusal(ctx.decisions, request)
    for asked in request.topics:
        topic = image.topics.get(asked.name)
        code = refusal
        if not refusal and not ctx.decisions.allows_on_topic(Operation.READ, asked.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answer = TxnOffsetCommitResponseTopic(name=asked.name)
        response.topics.append(answer)
        for each in asked.partitions:
            place = TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            answer.partitions.append(place)
            if not code:
                commit.add(topic, each, place)
    if commit.offsets:
        outcome = await _commit(ctx, request, commit.offsets)
        _ = commit.answer(outcome, response, lambda error: _code_of(error, ctx.api_version))
    return response


def _refusal(decisions: Decisions, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Why the whole request is refused."""
    if not decisions.allows_on_transactional_id(Operation.WRITE, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not decisions.allows_on_group(Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest, offsets: list[OffsetToCommit]
) -> Outcome:
    groups, transactions = ctx.services.groups, ctx.services.transactions
    name, producer = request.transactional_id, Identity(request.producer_id, request.producer_epoch)
    if not request.group_id:
        return InvalidGroupId(request.group_id)
    if not name:
        return InvalidTransactionalId()
    index = groups.partition_of(request.group_id)
    if index is None:
        return CoordinatorNotAvailable(f"there is no {OFFSETS_TOPIC} yet")
    verification = VerifyPartitions(name, producer, (TopicPartition(OFFSETS_TOPIC, index),))
    command: object = verification
    if ctx.api_version >= ADDS_ITSELF_FROM:
        command = AddPartitions(
            transactional_id=name,
            producer=producer,
            partitions=verification.partitions,
            transaction_version=EPOCH_PER_TRANSACTION,
        )
    others = ctx.services.remote_transactions
    if others is not None and others.is_elsewhere(transactions, name):
        partition = ctx.services.partitions.find(OFFSETS_TOPIC, index)
        standing = _standing(partition)
        outcome = await others.ask(
            transactions,
            name,
            producer,
            verification.partitions,
            adds=ctx.api_version >= ADDS_ITSELF_FROM,
        )
        if isinstance(outcome, MillraceError):
            return outcome
        if _standing(partition) != standing:
            # A marker may have ended the very transaction that was just found open.
            return CoordinatorLoading(f"{OFFSETS_TOPIC}-{index}")
    else:
        outcome = transactions.submit(name, command)
        if isinstance(outcome, asyncio.Future):
            outcome = await outcome
        if isinstance(outcome, MillraceError):
            return outcome
        # Nothing comes between this look at the transaction and the append: a marker cannot overtake it.
        error = transactions.verify(verification)
        if error is not None:
            return error
    stored = groups.submit(
        request.group_id,
        CommitInTransaction(
            Producer(*producer),
            CommitOffsets(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                offsets=offsets,
            ),
        ),
    )
    return await stored if isinstance(stored, asyncio.Future) else stored


def _standing(partition: Partition | None) -> tuple[int, int]:
    return (-1, -1) if partition is None else (partition.markers_count, partition.leaders_count)


def _code_of(error: MillraceError, version: int) -> int:
    match error:
        case EpochFenced():
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case PartitionNotInTransaction() if version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case _:
            return commit_error_code(error)


# v3 names the member, so that one that is no longer in the group is refused; v4 has an error that aborts;
# from v5 on the commit itself adds the group to the transaction.
TXN_OFFSET_COMMIT: Final = Api(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    handle=txn_offset_commit,
    checks=(on_transactional_id(Operation.WRITE), on_group(Operation.READ), on_topic(Operation.READ)),
)
