"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: how far share groups are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from millrace.groups.share.group import ShareGroup
from millrace.metadata.image import TopicState
from millrace.queues.state.commands import NO_OFFSET, StateSummary
from millrace.security.acls.binding import Operation
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from millrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from millrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

UNKNOWN_LAG: Final = -1


class _Wanted(NamedTuple):
    """Some partitions of a topic that somebody asks about."""

    name: str
    topic: TopicState | None
    partitions: Sequence[int]
    refusal: ErrorCode | None = None


# Describe.


async def describe_share_group_offsets(
    ctx: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(groups=[await _describe(ctx, group) for group in request.groups])


async def _describe(
    ctx: RequestContext, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = asked.group_id
    if not ctx.decisions.allows_on_group(Operation.DESCRIBE, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=code, error_message=code.message
        )
    machine = ctx.services.groups.machine_of(group_id)
    if isinstance(machine, MillraceError):
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=error_code(machine), error_message=error_message(machine)
        )
    group = machine.groups.get(group_id)
    wanted = (
        _all_wanted(ctx, group if isinstance(group, ShareGroup) else None)
        if asked.topics is None
        else [_named_wanted(ctx, topic.topic_name, topic.partitions) for topic in asked.topics]
    )
    places = [
        (each.topic.topic_id, number)
        for each in wanted
        if each.topic is not None and each.refusal is None
        for number in each.partitions
    ]
    summaries = await ctx.services.share_groups.summaries(group_id, places)
    ends = await _ends(ctx, wanted, summaries)
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id,
        topics=[
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=each.name,
                topic_id=NO_TOPIC_ID if each.topic is None else each.topic.topic_id,
                partitions=[_described(each, number, summaries, ends) for number in each.partitions],
            )
            for each in wanted
        ],
    )


def _all_wanted(ctx: RequestContext, group: ShareGroup | None) -> list[_Wanted]:
    """What the group has, of the topics that the client may know of."""
    if group is None:
        return []
    by_id = ctx.services.metadata.image.topics_by_id
    found = [(by_id.get(topic), numbers) for topic, numbers in group.state.assignable().items()]
    return [
        _Wanted(topic.name, topic, sorted(numbers))
        for topic, numbers in found
        if topic is not None and ctx.decisions.allows_on_topic(Operation.DESCRIBE, topic.name)
    ]


def _named_wanted(ctx: RequestContext, name: str, partitions: Sequence[int]) -> _Wanted:
    if not ctx.decisions.allows_on_topic(Operation.DESCRIBE, name):
        return _Wanted(name, None, partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return _Wanted(name, ctx.services.metadata.image.topics.get(name), partitions)


async def _ends(
    ctx: RequestContext,
    wanted: Iterable[_Wanted],
    summaries: Mapping[tuple[TopicId, int], StateSummary | MillraceError],
) -> Mapping[TopicPartition, int | ErrorCode]:
    """Where the partitions end whose lag can be told."""
    return await ctx.services.end_offsets.find(
        [
            TopicPartition(each.name, number)
            for each in wanted
            if each.topic is not None
            for number in each.partitions
            if _has_lag(summaries.get((each.topic.topic_id, number)))
        ]
    )


def _has_lag(summary: StateSummary | MillraceError | None) -> bool:
    return (
        isinstance(summary, StateSummary)
        and summary.start_offset != NO_OFFSET
        and summary.delivery_complete_count >= 0
    )


def _described(
    wanted: _Wanted,
    number: int,
    summaries: Mapping[tuple[TopicId, int], StateSummary | MillraceError],
    ends: Mapping[TopicPartition, int | ErrorCode],
) -> DescribeShareGroupOffsetsResponsePartition:
    if wanted.refusal is not None:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, error_code=wanted.refusal, error_message=wanted.refusal.message
        )
    summary = None if wanted.topic is None else summaries[wanted.topic.topic_id, number]
    if not isinstance(summary, StateSummary):
        # Nothing is known, which is no error: so it is with the offsets of consumer groups.
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, start_offset=NO_OFFSET, lag=UNKNOWN_LAG
        )
    end = ends.get(TopicPartition(wanted.name, number), NO_OFFSET)
    if isinstance(end, ErrorCode):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, error_code=end, error_message=end.message
        )
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=number,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=end - summary.start_offset - summary.delivery_complete_count
        if _has_lag(summary)
        else UNKNOWN_LAG,
    )


# Alter.


async def alter_share_group_offsets(
    ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    group_id = request.group_id
    if not ctx.decisions.allows_on_group(Operation.READ, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return AlterShareGroupOffsetsResponse(error_code=code, error_message=code.message)
    if not group_id:
        code = ErrorCode.INVALID_GROUP_ID
        return AlterShareGroupOffsetsResponse(error_code=code, error_message=code.message)
    wanted = {topic.topic_name: _alterable(ctx, topic) for topic in request.topics}
    offsets = {
        (each.topic.topic_id, partition.partition_index): partition.start_offset
        for topic in request.topics
        if (each := wanted[topic.topic_name]).topic is not None
        for partition in topic.partitions
        if 0 <= partition.partition_index < len(each.topic.partitions)
    }
    # Also where no topic is left: what is wrong with the group comes first.
    outcome = await ctx.services.share_groups.alter(group_id, offsets)
    if isinstance(outcome, MillraceError):
        return AlterShareGroupOffsetsResponse(
            error_code=error_code(outcome), error_message=error_message(outcome)
        )
    return AlterShareGroupOffsetsResponse(
        responses=[
            AlterShareGroupOffsetsResponseTopic(
                topic_name=each.name,
                topic_id=NO_TOPIC_ID if each.topic is None else each.topic.topic_id,
                partitions=[_altered(each, number, offsets, outcome) for number in each.partitions],
            )
            for each in wanted.values()
        ]
    )


def _alterable(ctx: RequestContext, asked: AlterShareGroupOffsetsRequestTopic) -> _Wanted:
    name = asked.topic_name
    partitions = [partition.partition_index for partition in asked.partitions]
    if not ctx.decisions.allows_on_topic(Operation.READ, name):
        return _Wanted(name, None, partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = ctx.services.metadata.image.topics.get(name)
    refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else None
    return _Wanted(name, topic, partitions, refusal)


def _altered(
    wanted: _Wanted,
    number: int,
    offsets: Mapping[tuple[TopicId, int], int],
    errors: Mapping[tuple[TopicId, int], MillraceError],
) -> AlterShareGroupOffsetsResponsePartition:
    refusal = wanted.refusal
    if wanted.topic is not None:
        place = (wanted.topic.topic_id, number)
        if place in errors:
            error = errors[place]
            return AlterShareGroupOffsetsResponsePartition(
                partition_index=number, error_code=error_code(error), error_message=error_message(error)
            )
        if place not in offsets:
            refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if refusal is not None:
        return AlterShareGroupOffsetsResponsePartition(
            partition_index=number, error_code=refusal, error_message=refusal.message
        )
    return AlterShareGroupOffsetsResponsePartition(partition_index=number)


# Delete.


async def delete_share_group_offsets(
    ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    group_id = request.group_id
    if not ctx.decisions.allows_on_group(Operation.DELETE, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return DeleteShareGroupOffsetsResponse(error_code=code, error_message=code.message)
    if not group_id:
        code = ErrorCode.INVALID_GROUP_ID
        return DeleteShareGroupOffsetsResponse(error_code=code, error_message=code.message)
    image = ctx.services.metadata.image
    response = DeleteShareGroupOffsetsResponse()
    known: dict[TopicId, str] = {}
    for name in dict.fromkeys(topic.topic_name for topic in request.topics):
        topic = image.topics.get(name)
        if not ctx.decisions.allows_on_topic(Operation.READ, name):
            response.responses.append(_not_deleted(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        if topic is None:
            response.responses.append(_not_deleted(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            known[topic.topic_id] = name
    # Also where no topic is left: what is wrong with the group comes first.
    outcome = await ctx.services.share_groups.delete(group_id, list(known))
    if isinstance(outcome, MillraceError):
        return DeleteShareGroupOffsetsResponse(
            error_code=error_code(outcome), error_message=error_message(outcome)
        )
    for topic_id, name in known.items():
        if topic_id not in outcome:
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete."
            response.responses.append(_not_deleted(name, code, message))
            continue
        error = outcome[topic_id]
        response.responses.append(
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=topic_id,
                error_code=0 if error is None else error_code(error),
                error_message=None if error is None else error_message(error),
            )
        )
    return response


def _not_deleted(
    name: str, code: ErrorCode, message: str | None = None
) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=code, error_message=message or code.message
    )


# v1 tells the lag.
DESCRIBE_SHARE_GROUP_OFFSETS: Final = Api(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    versions=(0, 1),
    handle=describe_share_group_offsets,
    checks=(on_group(Operation.DESCRIBE), on_topic(Operation.DESCRIBE)),
)
ALTER_SHARE_GROUP_OFFSETS: Final = Api(
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    handle=alter_share_group_offsets,
    checks=(on_group(Operation.READ), on_topic(Operation.READ)),
)
DELETE_SHARE_GROUP_OFFSETS: Final = Api(
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    handle=delete_share_group_offsets,
    checks=(on_group(Operation.DELETE), on_topic(Operation.READ)),
)
