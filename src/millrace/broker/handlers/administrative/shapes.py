"""For each administrative API: what its answer says about which thing, and an answer that refuses all.

Values of settings, salts, keys and tokens are told to nobody: only what was to change is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from millrace.core.ids import TopicId, format_topic_id
from millrace.security.acls.binding import Operation, PatternType, Permission, ResourceType, known
from millrace.security.audit.events import Result
from millrace.security.config_resources import ROLE_TYPE, TENANT_TYPE
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages import alter_configs as alter
from millrace.wire.messages import incremental_alter_configs as incremental
from millrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from millrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from millrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from millrace.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from millrace.wire.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from millrace.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from millrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from millrace.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from millrace.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from millrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from millrace.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from millrace.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from millrace.wire.messages.expire_delegation_token import ExpireDelegationTokenResponse
from millrace.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from millrace.wire.messages.renew_delegation_token import RenewDelegationTokenResponse
from millrace.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


class Shape(NamedTuple):
    """How to read one API's answer, and how to refuse."""

    results: Callable[[Any, Any], Iterable[Result]]
    """From a request and its answer: what came of each thing."""
    refused: Callable[[Any, ErrorCode, str], Any]
    """The answer that refuses all that a request asks for."""


_CONFIG_TYPES: Final = {
    2: "Topic",
    4: "Broker",
    8: "BrokerLogger",
    16: "ClientMetrics",
    32: "Group",
    ROLE_TYPE: "Role",
    TENANT_TYPE: "Tenant",
}
_VALIDATED: Final = "validated only"
_KNOWN_CODES: Final = {int(code): code.name for code in ErrorCode}


def _name(code: int) -> str:
    return _KNOWN_CODES.get(code, str(code))


def _partition(topic: str, index: int) -> str:
    return f"{topic}-{index}"


# Topics.


def _created_topics(request: CreateTopicsRequest, response: CreateTopicsResponse) -> Iterator[Result]:
    detail = _VALIDATED if request.validate_only else ""
    for topic in response.topics:
        yield Result("Topic", topic.name, _name(topic.error_code), detail)


def _no_topics_created(request: CreateTopicsRequest, code: ErrorCode, message: str) -> CreateTopicsResponse:
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=name, error_code=code, error_message=message) for name in names]
    )


def _deleted_topics(_request: DeleteTopicsRequest, response: DeleteTopicsResponse) -> Iterator[Result]:
    for topic in response.responses:
        name = topic.name if topic.name is not None else format_topic_id(TopicId(topic.topic_id))
        yield Result("Topic", name, _name(topic.error_code))


def _no_topics_deleted(request: DeleteTopicsRequest, code: ErrorCode, message: str) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        # The names of older versions are among them.
        responses=[
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message
            )
            for topic in request.topics
        ]
    )


def _created_partitions(
    request: CreatePartitionsRequest, response: CreatePartitionsResponse
) -> Iterator[Result]:
    wanted = {topic.name: f"{topic.count} partitions" for topic in request.topics}
    for topic in response.results:
        detail = wanted.get(topic.name, "")
        if request.validate_only:
            detail = f"{detail}, {_VALIDATED}"
        yield Result("Topic", topic.name, _name(topic.error_code), detail)


def _no_partitions_created(
    request: CreatePartitionsRequest, code: ErrorCode, message: str
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _deleted_records(_request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Iterator[Result]:
    for topic in response.topics:
        for partition in topic.partitions:
            detail = f"up to offset {partition.low_watermark}"
            name = _partition(topic.name, partition.partition_index)
            yield Result("Partition", name, _name(partition.error_code), detail)


def _no_records_deleted(request: DeleteRecordsRequest, code: ErrorCode, _: str) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index, low_watermark=-1, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# Settings.


def _altered_configs(
    request: alter.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest,
    response: alter.AlterConfigsResponse | incremental.IncrementalAlterConfigsResponse,
) -> Iterator[Result]:
    names = {
        (resource.resource_type, resource.resource_name): ", ".join(one.name for one in resource.configs)
        for resource in request.resources
    }
    for answered in response.responses:
        detail = names.get((answered.resource_type, answered.resource_name), "")
        if request.validate_only:
            detail = f"{detail}, {_VALIDATED}"
        kind = _CONFIG_TYPES.get(answered.resource_type, str(answered.resource_type))
        yield Result(kind, answered.resource_name, _name(answered.error_code), detail)


def _no_configs_replaced(
    request: alter.AlterConfigsRequest, code: ErrorCode, message: str
) -> alter.AlterConfigsResponse:
    return alter.AlterConfigsResponse(
        responses=[
            alter.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one in request.resources
        ]
    )


def _no_configs_altered(
    request: incremental.IncrementalAlterConfigsRequest, code: ErrorCode, message: str
) -> incremental.IncrementalAlterConfigsResponse:
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one in request.resources
        ]
    )


# The cluster.


def _moved_replicas(
    _request: AlterReplicaLogDirsRequest, response: AlterReplicaLogDirsResponse
) -> Iterator[Result]:
    for topic in response.results:
        for partition in topic.partitions:
            name = _partition(topic.topic_name, partition.partition_index)
            yield Result("Partition", name, _name(partition.error_code))


def _no_replicas_moved(
    request: AlterReplicaLogDirsRequest, code: ErrorCode, _: str
) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _elected(_request: ElectLeadersRequest, response: ElectLeadersResponse) -> Iterator[Result]:
    if response.error_code:
        yield Result("Cluster", "kafka-cluster", _name(response.error_code))
    for topic in response.replica_election_results:
        for partition in topic.partition_result:
            name = _partition(topic.topic, partition.partition_id)
            yield Result("Partition", name, _name(partition.error_code))


def _nobody_elected(request: ElectLeadersRequest, code: ErrorCode, message: str) -> ElectLeadersResponse:
    if request.topic_partitions is None:
        # All partitions are meant. Version 0 has no place for a code that is about them all.
        return ElectLeadersResponse(error_code=code)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions
        ]
    )


def _reassigned(
    _request: AlterPartitionReassignmentsRequest, response: AlterPartitionReassignmentsResponse
) -> Iterator[Result]:
    if response.error_code:
        yield Result("Cluster", "kafka-cluster", _name(response.error_code))
    for topic in response.responses:
        for partition in topic.partitions:
            name = _partition(topic.name, partition.partition_index)
            yield Result("Partition", name, _name(partition.error_code))


def _unregistered(request: UnregisterBrokerRequest, response: UnregisterBrokerResponse) -> Iterator[Result]:
    yield Result("Broker", str(request.broker_id), _name(response.error_code))


# Groups.


def _deleted_groups(_request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Iterator[Result]:
    for group in response.results:
        yield Result("Group", group.group_id, _name(group.error_code))


def _deleted_offsets(request: OffsetDeleteRequest, response: OffsetDeleteResponse) -> Iterator[Result]:
    if response.error_code:
        yield Result("Group", request.group_id, _name(response.error_code))
    for topic in response.topics:
        for partition in topic.partitions:
            detail = f"offset of {_partition(topic.name, partition.partition_index)}"
            yield Result("Group", request.group_id, _name(partition.error_code), detail)


def _altered_share_offsets(
    request: AlterShareGroupOffsetsRequest, response: AlterShareGroupOffsetsResponse
) -> Iterator[Result]:
    if response.error_code:
        yield Result("Group", request.group_id, _name(response.error_code))
    for topic in response.responses:
        for partition in topic.partitions:
            detail = f"start of {_partition(topic.topic_name, partition.partition_index)}"
            yield Result("Group", request.group_id, _name(partition.error_code), detail)


def _deleted_share_offsets(
    request: DeleteShareGroupOffsetsRequest, response: DeleteShareGroupOffsetsResponse
) -> Iterator[Result]:
    if response.error_code:
        yield Result("Group", request.group_id, _name(response.error_code))
    for topic in response.responses:
        yield Result("Group", request.group_id, _name(topic.error_code), f"offsets of {topic.topic_name}")


# Security.


def _acl_text(acl: AclCreation | DeleteAclsMatchingAcl) -> str:
    pattern = acl.pattern_type if isinstance(acl, DeleteAclsMatchingAcl) else acl.resource_pattern_type
    return (
        f"{acl.principal} {known(Permission, acl.permission_type).name} "
        f"{known(Operation, acl.operation).name} on {known(ResourceType, acl.resource_type).title}:"
        f"{known(PatternType, pattern).name}:{acl.resource_name} from {acl.host}"
    )


def _created_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterator[Result]:
    for creation, result in zip(request.creations, response.results, strict=False):
        yield Result("Acl", _acl_text(creation), _name(result.error_code))


def _deleted_acls(_request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterator[Result]:
    for number, found in enumerate(response.filter_results):
        if found.error_code or not found.matching_acls:
            yield Result("AclFilter", str(number), _name(found.error_code), "nothing deleted")
        for acl in found.matching_acls:
            yield Result("Acl", _acl_text(acl), _name(acl.error_code))


def _altered_users(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Iterator[Result]:
    deleted = {deletion.name for deletion in request.deletions}
    for result in response.results:
        detail = "credential deleted" if result.user in deleted else "credential set"
        yield Result("User", result.user, _name(result.error_code), detail)


def _no_users_altered(
    request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str
) -> AlterUserScramCredentialsResponse:
    names = [one.name for one in request.deletions] + [one.name for one in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
            for name in dict.fromkeys(names)
        ]
    )


def _altered_quotas(
    request: AlterClientQuotasRequest, response: AlterClientQuotasResponse
) -> Iterator[Result]:
    for entry, result in zip(request.entries, response.entries, strict=False):
        name = ", ".join(f"{one.entity_type}={_entity(one.entity_name)}" for one in entry.entity)
        detail = ", ".join(f"-{op.key}" if op.remove else f"{op.key}={op.value:g}" for op in entry.ops)
        if request.validate_only:
            detail = f"{detail}, {_VALIDATED}"
        yield Result("Quota", name, _name(result.error_code), detail)


def _entity(name: str | None) -> str:
    return "<default>" if name is None else name


def _no_quotas_altered(
    request: AlterClientQuotasRequest, code: ErrorCode, message: str
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=code,
                error_message=message,
                entity=[
                    AlterClientQuotasResponseEntityData(
                        entity_type=one.entity_type, entity_name=one.entity_name
                    )
                    for one in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


def _created_token(
    _request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse
) -> Iterator[Result]:
    owner = f"owner {response.principal_type}:{response.principal_name}"
    yield Result("DelegationToken", response.token_id, _name(response.error_code), owner)


def _changed_token(_request: object, response: Any) -> Iterator[Result]:
    # The request names the token by its HMAC, which is the secret itself.
    yield Result("DelegationToken", "", _name(response.error_code))


def _refuse_all(answer: Callable[..., Any]) -> Callable[[object, ErrorCode, str], Any]:
    """For answers with one code for everything."""
    return lambda _request, code, _message: answer(error_code=code)


def _acl_refusals(request: CreateAclsRequest, code: ErrorCode, message: str) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=_for_each(request.creations, AclCreationResult(error_code=code, error_message=message))
    )


def _filter_refusals(request: DeleteAclsRequest, code: ErrorCode, message: str) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=_for_each(
            request.filters, DeleteAclsFilterResult(error_code=code, error_message=message)
        )
    )


def _group_refusals(request: DeleteGroupsRequest, code: ErrorCode, _: str) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names]
    )


def _for_each(asked: Sequence[object], refusal: Any) -> list[Any]:
    return [refusal for _ in asked]


ADMINISTRATIVE: Final[dict[ApiKey, Shape]] = {
    ApiKey.CREATE_TOPICS: Shape(_created_topics, _no_topics_created),
    ApiKey.DELETE_TOPICS: Shape(_deleted_topics, _no_topics_deleted),
    ApiKey.CREATE_PARTITIONS: Shape(_created_partitions, _no_partitions_created),
    ApiKey.DELETE_RECORDS: Shape(_deleted_records, _no_records_deleted),
    ApiKey.ALTER_CONFIGS: Shape(_altered_configs, _no_configs_replaced),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Shape(_altered_configs, _no_configs_altered),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Shape(_moved_replicas, _no_replicas_moved),
    ApiKey.ELECT_LEADERS: Shape(_elected, _nobody_elected),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Shape(
        _reassigned, _refuse_all(AlterPartitionReassignmentsResponse)
    ),
    ApiKey.UNREGISTER_BROKER: Shape(_unregistered, _refuse_all(UnregisterBrokerResponse)),
    ApiKey.DELETE_GROUPS: Shape(_deleted_groups, _group_refusals),
    ApiKey.OFFSET_DELETE: Shape(_deleted_offsets, _refuse_all(OffsetDeleteResponse)),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Shape(
        _altered_share_offsets, _refuse_all(AlterShareGroupOffsetsResponse)
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Shape(
        _deleted_share_offsets, _refuse_all(DeleteShareGroupOffsetsResponse)
    ),
    ApiKey.CREATE_ACLS: Shape(_created_acls, _acl_refusals),
    ApiKey.DELETE_ACLS: Shape(_deleted_acls, _filter_refusals),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Shape(_altered_users, _no_users_altered),
    ApiKey.ALTER_CLIENT_QUOTAS: Shape(_altered_quotas, _no_quotas_altered),
    ApiKey.CREATE_DELEGATION_TOKEN: Shape(_created_token, _refuse_all(CreateDelegationTokenResponse)),
    ApiKey.RENEW_DELEGATION_TOKEN: Shape(_changed_token, _refuse_all(RenewDelegationTokenResponse)),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Shape(_changed_token, _refuse_all(ExpireDelegationTokenResponse)),
}
"""All that changes something for others and is not the data itself."""
