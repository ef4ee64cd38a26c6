"""Stores the committed offsets of a group, and asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.sim.clients.client import GROUP, Client, ErrorAnswer
from millrace.sim.history import OffsetCommitted, OffsetFetched
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

COMMIT_VERSION: Final = 9
FETCH_VERSION: Final = 9
NONE_COMMITTED: Final = -1
_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


async def fetch_offsets(client: Client, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Ask once what is committed, by transactions that are decided."""
    asked_at = client.now()
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))],
            )
        ],
        require_stable=True,
    )
    response: OffsetFetchResponse = await client.ask_coordinator(
        GROUP, group, ApiKey.OFFSET_FETCH, FETCH_VERSION, request
    )
    (answered,) = response.groups
    _check(client, group, "OffsetFetch", answered.error_code)
    client.served_by_coordinator(GROUP, group, asked_at, "OffsetFetch")
    found: dict[int, int] = {}
    for entry in answered.topics:
        for each in entry.partitions:
            _check(client, group, "OffsetFetch", each.error_code)
            found[each.partition_index] = each.committed_offset
    for partition, offset in found.items():
        client.note(
            OffsetFetched(
                at=client.now(),
                group=group,
                topic=topic,
                partition=partition,
                offset=offset,
                asked_at=asked_at,
            )
        )
    return found


async def commit_offsets(
    client: Client,
    group: str,
    member: str,
    generation: int,
    topic: str,
    offsets: dict[int, int],
    *,
    is_epoch: bool = False,
) -> None:
    """Store how far a member has read, in one attempt. With `is_epoch` the generation is the member's own
    epoch, which is not noted because it cannot be compared with that of others."""
    asked_at = client.now()
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
                    for partition, offset in offsets.items()
                ],
            )
        ],
    )
    response: OffsetCommitResponse = await client.ask_coordinator(
        GROUP, group, ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request
    )
    for answered in response.topics:
        for each in answered.partitions:
            _check(client, group, "OffsetCommit", each.error_code)
    client.served_by_coordinator(GROUP, group, asked_at, "OffsetCommit")
    for partition, offset in offsets.items():
        client.note(
            OffsetCommitted(
                at=client.now(),
                group=group,
                member=member,
                generation=-1 if is_epoch else generation,
                topic=topic,
                partition=partition,
                offset=offset,
                asked_at=asked_at,
            )
        )


def _check(client: Client, group: str, what: str, code: int) -> None:
    if code in _MOVED:
        client.forget_coordinator(GROUP, group)
    if code:
        raise ErrorAnswer(what, code)
