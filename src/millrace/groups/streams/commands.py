"""What can be asked of groups of the streams protocol (KIP-1071), what they answer, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.groups.consumer.commands import UNCHANGED
from millrace.groups.streams.tasks import TaskPlace, Tasks
from millrace.wire.messages.streams_group_records import StreamsGroupTopologyValue

JOINING: Final = 0
TaskIds = Sequence[tuple[str, Sequence[int]]]
"""Subtopologies with the numbers of tasks, as requests carry them."""


class Endpoint(NamedTuple):
    """Where a member answers queries of its state stores."""

    host: str
    port: int


class StreamsHeartbeat(NamedTuple):
    """A heartbeat. A field that is None has not changed since the member last told it."""

    group_id: str
    member_id: str
    member_epoch: int
    endpoint_epoch: int = -1
    """The epoch of what the member knows about endpoints."""
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = UNCHANGED
    topology: StreamsGroupTopologyValue | None = None
    active: TaskIds | None = None
    standby: TaskIds | None = None
    warmup: TaskIds | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] | None = None
    has_task_offsets: bool = False
    shuts_down: bool = False
    """Whether the whole application has to stop."""
    client_id: str = ""
    client_host: str = ""


class StatusCode(IntEnum):
    """What a member is told about its group beside its tasks; the numbers are Kafka's."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """One of the things that a member is told, in words."""

    code: StatusCode
    detail: str


class NewInternalTopic(NamedTuple):
    """A repartition or changelog topic that the topology needs."""

    name: str
    partition_count: int
    replication_factor: int
    """-1 stands for the broker's default."""
    configs: Mapping[str, str]


class EndpointPartitions(NamedTuple):
    """The partitions whose state can be asked for at an endpoint."""

    endpoint: Endpoint
    active: Sequence[tuple[str, Sequence[int]]]
    standby: Sequence[tuple[str, Sequence[int]]]


class StreamsBeat(NamedTuple):
    """The answer to a heartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    tasks: Mapping[TaskPlace, Sequence[int]] | Tasks | None = None
    """What the member has to work on from now on; None if nothing has changed."""
    statuses: tuple[Status, ...] = ()
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    """None if the member knows the newest ones."""
    missing_topics: tuple[NewInternalTopic, ...] = ()
    """Internal topics that have to be created before the group can work."""


class StreamsSessionExpired(NamedTuple):
    """A member was not heard of for too long."""

    group_id: str
    member_id: str


class StreamsRevocationExpired(NamedTuple):
    """A member had its rebalance time-out to give tasks up."""

    group_id: str
    member_id: str
    member_epoch: int


class InitialAssignmentDue(NamedTuple):
    """A group that was empty has waited for its first members long enough."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSettings:
    """The `group.streams.*` settings, with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    size_max: int = 2**31 - 1
    standby_count: int = 0
    initial_rebalance_delay_ms: int = 3_000
    assignment_interval_ms: int = 1_000
