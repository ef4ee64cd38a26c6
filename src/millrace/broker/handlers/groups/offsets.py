"""OffsetCommit, OffsetFetch and OffsetDelete: how far groups have read."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from millrace.broker.handlers.groups.answers import all_answered, answered
from millrace.broker.handlers.groups.commit_places import CommitPlaces
from millrace.broker.handlers.groups.quick_commits import CommitRequest, quick_offset_commit
from millrace.broker.network.checks import on_group, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.groups.commands import (
    UNSTABLE,
    CommitOffsets,
    CommittedOffset,
    DeleteOffsets,
    FetchOffsets,
    OffsetsDeleted,
    OffsetsFetched,
)
from millrace.metadata.image import Image, TopicState
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

TOPIC_IDS_FROM: Final = 10
EPOCHS_FROM: Final = 9
NO_OFFSET: Final = -1


def offset_commit(
    ctx: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    image = ctx.services.metadata.image
    decisions = ctx.decisions
    response = OffsetCommitResponse()
    commit = CommitPlaces()
    is_in_group = decisions.allows_on_group(Operation.READ, request.group_id)
    for asked in request.topics:
        topic = _topic(image, asked.name, asked.topic_id, ctx.api_version)
        # The name that is asked for decides, whether there is such a topic or not.
        name = asked.name if topic is None else topic.name
        is_unknown_id = topic is None and ctx.api_version >= TOPIC_IDS_FROM
        code = ErrorCode.NONE
        if not is_in_group:
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif not is_unknown_id and not decisions.allows_on_topic(Operation.READ, name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answer = OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id)
        response.topics.append(answer)
        for each in asked.partitions:
            place = OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            answer.partitions.append(place)
            if not code:
                commit.add(topic, each, place, unknown_topic=_unknown_topic(ctx.api_version))
    if not commit.offsets:
        return response
    command = CommitOffsets(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=None if request.retention_time_ms < 0 else request.retention_time_ms,
        knows_epochs=ctx.api_version >= EPOCHS_FROM,
        offsets=commit.offsets,
    )
    return commit.answer(ctx.services.groups.submit(request.group_id, command), response)


def offset_fetch(
    ctx: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    image = ctx.services.metadata.image

    def respond(outcomes: Sequence[Outcome]) -> OffsetFetchResponse:
        return OffsetFetchResponse(
            groups=[
                _fetched(ctx, group, outcome, image)
                for group, outcome in zip(request.groups, outcomes, strict=True)
            ]
        )

    stable = request.require_stable
    return all_answered([_fetch(ctx, group, image, stable) for group in request.groups], respond)


def _fetch(
    ctx: RequestContext, group: OffsetFetchRequestGroup, image: Image, require_stable: bool
) -> Outcome | Answer:
    if not ctx.decisions.allows_on_group(Operation.DESCRIBE, group.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    partitions = None
    if group.topics is not None:
        partitions = [
            (name, index)
            for asked in group.topics
            if (name := _name(image, asked, ctx.api_version)) is not None
            # The answer asks again, and tells of it.
            and ctx.decisions.shows(Operation.DESCRIBE, ResourceType.TOPIC, name)
            for index in asked.partition_indexes
        ]
    command = FetchOffsets(group.group_id, partitions, group.member_id, group.member_epoch, require_stable)
    return ctx.services.groups.submit(group.group_id, command)


def _fetched(
    ctx: RequestContext, group: OffsetFetchRequestGroup, outcome: Outcome, image: Image
) -> OffsetFetchResponseGroup:
    version, allows = ctx.api_version, ctx.decisions.allows_on_topic
    if isinstance(outcome, ErrorCode | MillraceError):
        code = outcome if isinstance(outcome, ErrorCode) else error_code(outcome)
        return _fetch_failed(group, code, version)
    assert isinstance(outcome, OffsetsFetched), outcome
    answer = OffsetFetchResponseGroup(group_id=group.group_id)
    if group.topics is None:
        return _all_fetched(ctx, answer, outcome, image)
    found = {(name, index): committed for name, index, committed in outcome.offsets}
    for asked in group.topics:
        topic = OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id)
        answer.topics.append(topic)
        name = _name(image, asked, version)
        if name is None or not allows(Operation.DESCRIBE, name):
            code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.partitions += [_partition(index, None, code) for index in asked.partition_indexes]
            continue
        topic_id = asked.topic_id if version >= TOPIC_IDS_FROM else _topic_id(image, asked.name)
        for index in asked.partition_indexes:
            committed = found.get((name, index))
            if committed is not None and _is_other(committed.topic_id, topic_id):
                committed = None
            topic.partitions.append(_partition(index, committed))
    return answer


def _all_fetched(
    ctx: RequestContext, answer: OffsetFetchResponseGroup, outcome: OffsetsFetched, image: Image
) -> OffsetFetchResponseGroup:
    topics: dict[str, OffsetFetchResponseTopics] = {}
    for name, index, committed in outcome.offsets:
        if committed is not None and _is_other(committed.topic_id, _topic_id(image, name)):
            continue
        topic = topics.get(name)
        if topic is None:
            known = image.topics.get(name)
            if known is None and ctx.api_version >= TOPIC_IDS_FROM:
                # The topic is being deleted: there is no id to tell it by.
                continue
            if not ctx.decisions.shows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                continue
            topic = topics[name] = OffsetFetchResponseTopics(name=name)
            if known is not None:
                topic.topic_id = known.topic_id
        topic.partitions.append(_partition(index, committed))
    answer.topics = list(topics.values())
    return answer


def _fetch_failed(group: OffsetFetchRequestGroup, code: int, version: int) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
    if version < 2:
        # There is no place for a group's error: every partition carries it.
        answer.topics = [
            OffsetFetchResponseTopics(
                name=asked.name,
                partitions=[_partition(index, None, code) for index in asked.partition_indexes],
            )
            for asked in group.topics or ()
        ]
    return answer


def _partition(index: int, committed: CommittedOffset | None, code: int = 0) -> OffsetFetchResponsePartitions:
    if committed is UNSTABLE:
        code, committed = ErrorCode.UNSTABLE_OFFSET_COMMIT, None
    if committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=NO_OFFSET, error_code=code
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def offset_delete(
    ctx: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    decisions = ctx.decisions
    if not decisions.allows_on_group(Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    image = ctx.services.metadata.image
    response = OffsetDeleteResponse()
    wanted: list[tuple[str, int]] = []
    places: list[OffsetDeleteResponsePartition] = []
    for asked in request.topics:
        answer = OffsetDeleteResponseTopic(name=asked.name)
        response.topics.append(answer)
        for each in asked.partitions:
            place = OffsetDeleteResponsePartition(partition_index=each.partition_index)
            answer.partitions.append(place)
            if not decisions.allows_on_topic(Operation.READ, asked.name):
                place.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(asked.name, each.partition_index) is None:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                places.append(place)
                wanted.append((asked.name, each.partition_index))

    def respond(outcome: Outcome) -> OffsetDeleteResponse:
        if isinstance(outcome, MillraceError):
            return OffsetDeleteResponse(error_code=error_code(outcome))
        assert isinstance(outcome, OffsetsDeleted), outcome
        for place, error in zip(places, outcome.errors, strict=True):
            if error is not None:
                place.error_code = error_code(error)
        return response

    command = DeleteOffsets(request.group_id, wanted)
    return answered(ctx.services.groups.submit(request.group_id, command), respond)


def _topic(image: Image, name: str, topic_id: bytes, version: int) -> TopicState | None:
    return image.topics_by_id.get(TopicId(topic_id)) if version >= TOPIC_IDS_FROM else image.topics.get(name)


def _name(image: Image, asked: OffsetFetchRequestTopics, version: int) -> str | None:
    """The topic's name; only an id that nobody knows has none."""
    if version < TOPIC_IDS_FROM:
        return asked.name
    topic = image.topics_by_id.get(TopicId(asked.topic_id))
    return None if topic is None else topic.name


def _topic_id(image: Image, name: str) -> bytes:
    topic = image.topics.get(name)
    return NO_TOPIC_ID if topic is None else topic.topic_id


def _unknown_topic(version: int) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_FROM else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _is_other(committed: bytes, asked: bytes) -> bool:
    """Whether an offset is of a topic that had the same name before.

    Kafka looks only where a client asks by id. An offset of the old topic is wrong for the new one however
    it is asked for, and it is there if the broker died between deleting the topic and its offsets."""
    return any(committed) and any(asked) and committed != asked


# v5 drops the retention time, v7 adds static members, v9 member epochs, v10 topic ids.
OFFSET_COMMIT: Final = Api(
    ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    handle=offset_commit,
    checks=(on_group(Operation.READ), on_topic(Operation.READ)),
    quick=quick_offset_commit,
    request_type=CommitRequest,
)
# v7 can insist on stable offsets, v8 asks for several groups, v9 adds member epochs, v10 topic ids.
OFFSET_FETCH: Final = Api(
    ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    handle=offset_fetch,
    checks=(on_group(Operation.DESCRIBE), on_topic(Operation.DESCRIBE)),
)
OFFSET_DELETE: Final = Api(
    ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    handle=offset_delete,
    checks=(on_group(Operation.DELETE), on_topic(Operation.READ)),
)
