"""CreateTopics, DeleteTopics and CreatePartitions: shaping only, the rules are the metadata's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from millrace.broker.handlers.configs.outcomes import outcomes_of
from millrace.broker.handlers.topics.mutations import EXCEEDED, EXCEEDED_MESSAGE, Mutations
from millrace.broker.network.checks import on_cluster, on_topic
from millrace.broker.network.context import RequestContext
from millrace.broker.network.dispatch import Api
from millrace.broker.wire_errors import error_code, error_message
from millrace.core.ids import NO_TOPIC_ID, TopicId, format_topic_id
from millrace.metadata.adoption import KAFKA_METADATA_TOPIC
from millrace.metadata.commands import CreatePartitions
from millrace.metadata.config_definitions import BrokerLayers, describe_topic
from millrace.metadata.errors import (
    ContradictoryRequest,
    InvalidConfig,
    InvalidReplicaAssignment,
    MetadataError,
    TopicDeletionDisabled,
)
from millrace.metadata.image import TopicState
from millrace.metadata.service import NewTopic
from millrace.metadata.topic_names import AUDIT_TOPIC
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from millrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

DELETION_DISABLED_FROM: Final = 3
"""Older clients do not know that error."""

REFUSED_FROM: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""From which versions on clients know that a quota can be used up."""

NOT_ALLOWED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED

Named = TypeVar("Named", CreatableTopic, CreatePartitionsTopic)


async def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    results: dict[str, CreatableTopicResult] = {}
    wanted: dict[str, NewTopic] = {}
    decisions = ctx.decisions
    may_create_any = decisions.shows_on_cluster(Operation.CREATE)
    for name, topic in _by_name(request.topics).items():
        is_proper = topic is not None and name != KAFKA_METADATA_TOPIC
        if is_proper and not may_create_any and not decisions.allows_on_topic(Operation.CREATE, name):
            results[name] = CreatableTopicResult(
                name=name, error_code=NOT_ALLOWED, error_message=NOT_ALLOWED.message
            )
            continue
        try:
            wanted[name] = _new_topic(name, topic)
        except MetadataError as error:
            results[name] = _not_created(name, error)
    mutations = Mutations(ctx, refused_from=REFUSED_FROM[ApiKey.CREATE_TOPICS])
    sizes = _sizes(ctx, wanted.values(), validate_only=request.validate_only)
    for name, size in sizes.items():
        if not mutations.allow(size):
            del wanted[name]
            results[name] = CreatableTopicResult(
                name=name, error_code=EXCEEDED, error_message=EXCEEDED_MESSAGE
            )
    topics = list(wanted.values())
    created = ctx.services.metadata.create_topics(topics, validate_only=request.validate_only)
    describe = _Describe(ctx.services.config.layers)
    for name, outcome in zip(wanted, await outcomes_of(created, len(topics)), strict=True):
        if isinstance(outcome, MetadataError):
            mutations.give_back(sizes.get(name, 0))
        results[name] = (
            _not_created(name, outcome)
            if isinstance(outcome, MetadataError)
            else _created(outcome, describe)
            if decisions.shows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name)
            else CreatableTopicResult(
                name=name, topic_id=outcome.topic_id, topic_config_error_code=NOT_ALLOWED, error_message=None
            )
        )
    return CreateTopicsResponse(topics=list(results.values()), throttle_time_ms=mutations.throttle_ms)


def _sizes(ctx: RequestContext, topics: Iterable[NewTopic], *, validate_only: bool) -> dict[str, int]:
    """How many partitions each topic is to have; nothing where nothing is to change."""
    if validate_only:
        return {}
    default = ctx.services.config.policy().num_partitions
    return {
        topic.name: len(topic.assignments)
        if topic.assignments is not None
        else default
        if topic.partition_count < 0
        else topic.partition_count
        for topic in topics
    }


def _by_name(topics: Iterable[Named]) -> Mapping[str, Named | None]:
    """The topics of a request by name; None for one that is there more than once."""
    found: dict[str, Named | None] = {}
    for topic in topics:
        found[topic.name] = None if topic.name in found else topic
    return found


def _new_topic(name: str, topic: CreatableTopic | None) -> NewTopic:
    if topic is None:
        raise _named_twice(name)
    if name == AUDIT_TOPIC:
        # Or whoever comes first decides what becomes of the audit.
        raise ContradictoryRequest(f"topic {name!r} is created by brokers that write their audit there")
    if name == KAFKA_METADATA_TOPIC:
        # Adopted directories may hold a log of this name, which is left alone.
        raise ContradictoryRequest(f"topic {name!r} is reserved for Kafka's controllers")
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise InvalidConfig(config.name, None, "a new topic's setting needs a value")
        configs[config.name] = config.value
    assignments: dict[int, Sequence[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            raise InvalidReplicaAssignment(
                f"topic {name!r}: the replicas of partition {assignment.partition_index} are given twice"
            )
        assignments[assignment.partition_index] = assignment.broker_ids
    return NewTopic(
        name=name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments or None,
        configs=configs,
    )


def _named_twice(name: str) -> ContradictoryRequest:
    return ContradictoryRequest(f"the request names topic {name!r} more than once")


class _Describe:
    """Describes the settings of new topics: those created together mostly share them."""

    def __init__(self, layers: BrokerLayers) -> None:
        self._layers = layers
        self._known: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}

    def configs(self, own: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        key = tuple(own.items())
        if key not in self._known:
            self._known[key] = [
                CreatableTopicConfigs(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.is_read_only,
                    config_source=entry.source,
                    is_sensitive=entry.is_sensitive,
                )
                for entry in describe_topic(own, self._layers)
            ]
        return self._known[key]


def _created(topic: TopicState, describe: _Describe) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=describe.configs(topic.configs),
    )


def _not_created(name: str, error: MetadataError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error_code(error), error_message=error_message(error))


async def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    # In the order of the request, so that places tell nothing of topics that the client may not see.
    results: dict[str | TopicId | int, DeletableTopicResult | None] = {}
    wanted: dict[str | TopicId, DeleteTopicState] = {}
    for place, topic in enumerate(request.topics):
        if (topic.name is None) == (topic.topic_id == NO_TOPIC_ID):
            error = ContradictoryRequest("a topic is to be named either by its name or by its id")
            results[place] = _not_deleted(topic, error, ctx.api_version)
            continue
        key = TopicId(topic.topic_id) if topic.name is None else topic.name
        if key in results:
            twice = _named_twice(topic.name or format_topic_id(TopicId(topic.topic_id)))
            results[key] = _not_deleted(topic, twice, ctx.api_version)
            wanted.pop(key, None)
            continue
        results[key] = None
        wanted[key] = topic
    for key, topic in list(wanted.items()):
        refusal = _deletion_refused(ctx, topic) or _audit_kept(ctx, topic)
        if refusal is not None:
            results[key] = refusal
            del wanted[key]
    mutations = Mutations(ctx, refused_from=REFUSED_FROM[ApiKey.DELETE_TOPICS])
    image = ctx.services.metadata.image
    sizes: dict[str | TopicId, int] = {}
    for key, topic in list(wanted.items()):
        state = image.topics_by_id.get(key) if isinstance(key, bytes) else image.topics.get(key)
        sizes[key] = 0 if state is None else len(state.partitions)
        if not mutations.allow(sizes[key]):
            del wanted[key]
            results[key] = DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=EXCEEDED, error_message=EXCEEDED_MESSAGE
            )
    deleted = ctx.services.metadata.delete_topics(list(wanted))
    for (key, topic), outcome in zip(wanted.items(), await outcomes_of(deleted, len(wanted)), strict=True):
        if isinstance(outcome, MetadataError):
            mutations.give_back(sizes[key])
            results[key] = _not_deleted(topic, outcome, ctx.api_version)
        else:
            results[key] = DeletableTopicResult(name=outcome.name, topic_id=outcome.topic_id)
    return DeleteTopicsResponse(
        responses=[result for result in results.values() if result is not None],
        throttle_time_ms=mutations.throttle_ms,
    )


def _deletion_refused(ctx: RequestContext, topic: DeleteTopicState) -> DeletableTopicResult | None:
    """The answer to those who may not delete a topic, or not even know of it; None if they may."""
    decisions = ctx.decisions
    if decisions.shows_on_cluster(Operation.DELETE):
        return None
    if topic.name is None:
        known = ctx.services.metadata.image.topics_by_id.get(TopicId(topic.topic_id))
        if known is None or decisions.allows_on_topic(Operation.DELETE, known.name):
            # An id that nobody knows is no secret.
            return None
        is_shown = decisions.allows_on_topic(Operation.DESCRIBE, known.name)
        return DeletableTopicResult(
            name=known.name if is_shown else None,
            topic_id=topic.topic_id,
            error_code=NOT_ALLOWED,
            error_message=NOT_ALLOWED.message,
        )
    if decisions.allows_on_topic(Operation.DESCRIBE, topic.name):
        is_absent = topic.name not in ctx.services.metadata.image.topics
        if is_absent or decisions.allows_on_topic(Operation.DELETE, topic.name):
            return None
    return DeletableTopicResult(name=topic.name, error_code=NOT_ALLOWED, error_message=NOT_ALLOWED.message)


def _audit_kept(ctx: RequestContext, topic: DeleteTopicState) -> DeletableTopicResult | None:
    """The answer to those who would delete what is told of them; None for any other topic."""
    name = topic.name
    if name is None:
        known = ctx.services.metadata.image.topics_by_id.get(TopicId(topic.topic_id))
        name = None if known is None else known.name
    if name != AUDIT_TOPIC or ctx.services.access.auditor is None:
        return None
    is_known_code = ctx.api_version >= DELETION_DISABLED_FROM
    return DeletableTopicResult(
        name=name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.TOPIC_DELETION_DISABLED if is_known_code else ErrorCode.INVALID_REQUEST,
        error_message="the audit cannot be deleted while audit.enable is true",
    )


def _not_deleted(topic: DeleteTopicState, error: MetadataError, version: int) -> DeletableTopicResult:
    code = error_code(error)
    if isinstance(error, TopicDeletionDisabled) and version < DELETION_DISABLED_FROM:
        code = ErrorCode.INVALID_REQUEST
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=error_message(error)
    )


async def create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    results: list[CreatePartitionsTopicResult] = []
    wanted: list[CreatePartitions] = []
    sizes: list[int] = []
    mutations = Mutations(ctx, refused_from=REFUSED_FROM[ApiKey.CREATE_PARTITIONS])
    topics = ctx.services.metadata.image.topics
    for name, topic in _by_name(request.topics).items():
        if topic is None:
            results.append(_partitions_result(name, _named_twice(name)))
            continue
        if not ctx.decisions.allows_on_topic(Operation.ALTER, name):
            results.append(
                CreatePartitionsTopicResult(
                    name=name, error_code=NOT_ALLOWED, error_message=NOT_ALLOWED.message
                )
            )
            continue
        added = max(0, topic.count - len(topics[name].partitions)) if name in topics else 0
        size = 0 if request.validate_only else added
        if size and not mutations.allow(size):
            results.append(
                CreatePartitionsTopicResult(name=name, error_code=EXCEEDED, error_message=EXCEEDED_MESSAGE)
            )
            continue
        sizes.append(size)
        assignments = topic.assignments
        wanted.append(
            CreatePartitions(
                name=name,
                count=topic.count,
                assignments=None
                if assignments is None
                else [assignment.broker_ids for assignment in assignments],
            )
        )
    created = ctx.services.metadata.create_partitions(wanted, validate_only=request.validate_only)
    for command, size, outcome in zip(wanted, sizes, await outcomes_of(created, len(wanted)), strict=True):
        error = outcome if isinstance(outcome, MetadataError) else None
        if error is not None:
            mutations.give_back(size)
        results.append(_partitions_result(command.name, error))
    return CreatePartitionsResponse(results=results, throttle_time_ms=mutations.throttle_ms)


def _partitions_result(name: str, error: MetadataError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(
        name=name, error_code=error_code(error), error_message=error_message(error)
    )


# v4 knows defaults for counts (-1), v5 tells the settings of a new topic and is flexible, v7 tells its id.
CREATE_TOPICS: Final = Api(
    ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    handle=create_topics,
    checks=(
        on_cluster(Operation.CREATE),
        on_topic(Operation.CREATE, "or this one"),
        on_topic(Operation.DESCRIBE_CONFIGS, "to be told the settings"),
    ),
)
# v4 is the flexible encoding, v5 has messages, v6 takes topic ids.
DELETE_TOPICS: Final = Api(
    ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    handle=delete_topics,
    checks=(
        on_cluster(Operation.DELETE),
        on_topic(Operation.DESCRIBE, "else this one"),
        on_topic(Operation.DELETE, "and this one"),
    ),
)
# v2 is the flexible encoding.
CREATE_PARTITIONS: Final = Api(
    ApiKey.CREATE_PARTITIONS, versions=(0, 3), handle=create_partitions, checks=(on_topic(Operation.ALTER),)
)
