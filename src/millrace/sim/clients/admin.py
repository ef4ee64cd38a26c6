"""An administrator, who changes topics and where they are, and tries again until that is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millrace.client.errors import ConnectionFailed
from millrace.sim.clients.client import Client, ErrorAnswer
from millrace.sim.clients.reading import EARLIEST, LATEST, list_offset
from millrace.sim.history import DeletionAsked
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from millrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from millrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from millrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from millrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millrace.wire.schema_fields import Message

CREATE_VERSION: Final = 7
DELETE_VERSION: Final = 6
DELETE_RECORDS_VERSION: Final = 2
GROW_VERSION: Final = 3
REASSIGN_VERSION: Final = 1
ELECT_VERSION: Final = 2
ALTER_CONFIGS_VERSION: Final = 1
PREFERRED: Final = 0
TOPIC_RESOURCE: Final = 2
GROUP_RESOURCE: Final = 32
SET: Final = 0
UNSET: Final = 1


async def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int,
    replicas: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                configs=[CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()],
            )
        ],
        timeout_ms=10_000,
    )

    def code(response: CreateTopicsResponse) -> int:
        (result,) = response.topics
        return result.error_code

    await _until_done(
        client, ApiKey.CREATE_TOPICS, CREATE_VERSION, request, code, ErrorCode.TOPIC_ALREADY_EXISTS
    )


async def delete_topic(client: Client, name: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)

    def code(response: DeleteTopicsResponse) -> int:
        (result,) = response.responses
        return result.error_code

    await _until_done(
        client, ApiKey.DELETE_TOPICS, DELETE_VERSION, request, code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


async def grow_topic(client: Client, name: str, partitions: int) -> None:
    """Give a topic so many partitions, or leave it as it is if it has more."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=partitions, assignments=None)], timeout_ms=10_000
    )

    def code(response: CreatePartitionsResponse) -> int:
        (result,) = response.results
        return result.error_code

    await _until_done(
        client, ApiKey.CREATE_PARTITIONS, GROW_VERSION, request, code, ErrorCode.INVALID_PARTITIONS
    )


async def reassign(client: Client, topic: str, partition: int, replicas: Sequence[int] | None) -> int:
    """Begin to move a partition, or call a move off with None; return the code of the first answer."""
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=partition, replicas=None if replicas is None else list(replicas)
                    )
                ],
            )
        ]
    )
    response: AlterPartitionReassignmentsResponse = await first_answer(
        client, ApiKey.ALTER_PARTITION_REASSIGNMENTS, REASSIGN_VERSION, request
    )
    if response.error_code:
        return response.error_code
    (answered,) = response.responses
    (result,) = answered.partitions
    return result.error_code


async def delete_records_behind(
    client: Client, topic: str, partition: int, pick: Callable[[int, int], int]
) -> int | None:
    """Delete the records before the offset that `pick` chooses between the start and the end of the log.
    Return where the log begins then; None if the broker refused or nobody answered."""
    try:
        start = await list_offset(client, topic, partition, EARLIEST)
        end = await list_offset(client, topic, partition, LATEST)
        before = pick(start, end)
        client.note(DeletionAsked(at=client.now(), topic=topic, partition=partition, before_offset=before))
        place = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[place])], timeout_ms=10_000
        )
        leader = await client.leader(topic, partition)
        response: DeleteRecordsResponse = await client.ask(
            leader, ApiKey.DELETE_RECORDS, DELETE_RECORDS_VERSION, request
        )
    except (ConnectionFailed, ErrorAnswer):
        client.forget_leader(topic)
        return None
    (answered,) = response.topics
    (result,) = answered.partitions
    if result.error_code:
        client.forget_leader(topic)
        return None
    return result.low_watermark


async def elect_preferred_leaders(client: Client) -> None:
    """Ask once; a preferred leader that cannot lead now does not."""
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
    try:
        _: ElectLeadersResponse = await client.ask_anybody(ApiKey.ELECT_LEADERS, ELECT_VERSION, request)
    except ConnectionFailed:
        return


async def set_topic_config(client: Client, topic: str, name: str, value: str | None) -> None:
    """Set one setting, or take it back with None."""
    await _set_config(client, TOPIC_RESOURCE, topic, name, value)


async def set_group_config(client: Client, group: str, name: str, value: str | None) -> None:
    """Set one setting of a group, or take it back with None."""
    await _set_config(client, GROUP_RESOURCE, group, name, value)


async def _set_config(client: Client, kind: int, of: str, name: str, value: str | None) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=of,
                configs=[
                    AlterableConfig(
                        name=name, config_operation=SET if value is not None else UNSET, value=value
                    )
                ],
            )
        ]
    )

    def code(response: IncrementalAlterConfigsResponse) -> int:
        (result,) = response.responses
        return result.error_code

    await _until_done(
        client,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ALTER_CONFIGS_VERSION,
        request,
        code,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


async def _until_done(
    client: Client,
    api_key: ApiKey,
    version: int,
    request: Message,
    code: Callable[[Any], int],
    nothing_to_do: ErrorCode,
) -> None:
    """Ask until it is done. An answer that there is nothing to do is no error: an attempt whose answer was
    lost may have done it."""
    while code(await first_answer(client, api_key, version, request)) not in (ErrorCode.NONE, nothing_to_do):
        await client.pause()


async def first_answer(client: Client, api_key: ApiKey, version: int, request: Message) -> Any:
    while True:
        try:
            return await client.ask_anybody(api_key, version, request)
        except ConnectionFailed:
            await client.pause()
