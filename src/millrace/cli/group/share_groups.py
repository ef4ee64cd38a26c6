"""Share groups, which librdkafka's admin client does not know: asked over connections of our own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from millrace.cli.broker_requests import raise_for
from millrace.cli.command_config import security_of, servers_of
from millrace.cli.options import BrokerAddress
from millrace.client.broker_client import BrokerClient
from millrace.client.errors import UnsupportedBroker
from millrace.wire.api_keys import ApiKey
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from millrace.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from millrace.wire.messages.share_group_describe import ShareGroupDescribeRequest

Partition = tuple[str, int]
SHARE: Final = "share"
_OFFSETS_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup:
    """A share group as its coordinator tells of it."""

    state: str
    assignor: str
    coordinator_id: int
    coordinator: tuple[str, int]
    members: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a group begins in a partition, and how much it has still to do; None where nobody knows yet."""

    start: int | None
    lag: int | None


def find(address: BrokerAddress, name: str) -> ShareGroup | None:
    """The share group of this name; None if there is none, or the broker does not know of share groups."""
    with open_client(address) as client:
        node_id = client.coordinator(name)
        try:
            version = client.version(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, node_id)
        except UnsupportedBroker:
            return None
        request = ShareGroupDescribeRequest(group_ids=[name])
        (group,) = client.request(ApiKey.SHARE_GROUP_DESCRIBE, version, request, node_id).groups
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise_for(group.error_code, name, group.error_message)
        return ShareGroup(
            state=group.group_state,
            assignor=group.assignor_name,
            coordinator_id=node_id,
            coordinator=client.nodes()[node_id],
            members=tuple(group.members),
        )


def progress(address: BrokerAddress, name: str) -> dict[Partition, Progress]:
    """How far the group is in each of its partitions."""
    with open_client(address) as client:
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)]
        )
        (group,) = client.request(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, _OFFSETS_VERSION, request, client.coordinator(name)
        ).groups
    raise_for(group.error_code, name, group.error_message)
    return {
        (topic.topic_name, each.partition_index): Progress(
            None if each.start_offset < 0 else each.start_offset, None if each.lag < 0 else each.lag
        )
        for topic in group.topics
        for each in topic.partitions
    }


def alter(address: BrokerAddress, name: str, offsets: Mapping[Partition, int]) -> None:
    """Let the group begin at these offsets. A group that is not there comes into being."""
    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for (topic, number), offset in offsets.items():
        asked = topics.setdefault(topic, AlterShareGroupOffsetsRequestTopic(topic_name=topic))
        asked.partitions.append(
            AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
        )
    with open_client(address) as client:
        request = AlterShareGroupOffsetsRequest(group_id=name, topics=list(topics.values()))
        answer = client.request(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, request, client.coordinator(name))
    raise_for(answer.error_code, name, answer.error_message)
    for told in answer.responses:
        for each in told.partitions:
            raise_for(each.error_code, f"{told.topic_name}:{each.partition_index}", each.error_message)


def delete_offsets(address: BrokerAddress, name: str, topics: Iterable[str]) -> dict[str, str | None]:
    """Forget where the group is in these topics; what was wrong with each, or None."""
    with open_client(address) as client:
        request = DeleteShareGroupOffsetsRequest(
            group_id=name, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
        )
        answer = client.request(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, request, client.coordinator(name))
    raise_for(answer.error_code, name, answer.error_message)
    return {
        each.topic_name: (each.error_message or ErrorCode(each.error_code).message)
        if each.error_code
        else None
        for each in answer.responses
    }


@contextmanager
def open_client(address: BrokerAddress) -> Iterator[BrokerClient]:
    """Connections of our own to all brokers, closed with the block."""
    with BrokerClient(
        servers_of(address),
        client_id="millrace-cli",
        security=security_of(address),
        timeout_ms=int(address.timeout_s * 1000),
    ) as client:
        yield client
