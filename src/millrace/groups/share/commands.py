"""What can be asked of share groups, what they answer, and the settings of their membership."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.core.ids import TopicId
from millrace.groups.assignors import Partitions
from millrace.groups.consumer.commands import Beat


class ShareHeartbeat(NamedTuple):
    """A heartbeat. A field that is None has not changed since the member last told it."""

    group_id: str
    member_id: str
    member_epoch: int
    rack: str | None = None
    topic_names: Sequence[str] | None = None
    client_id: str = ""
    client_host: str = ""


class StateToInitialize(NamedTuple):
    """Partitions whose state has to be prepared before members get them."""

    state_epoch: int
    partitions: Partitions


class BeatBeforeState(NamedTuple):
    """The answer to a heartbeat after which the caller has to prepare state and tell what became of it."""

    beat: Beat
    missing: StateToInitialize


class StateInitialized(NamedTuple):
    """The state of these partitions is stored: members may get them."""

    group_id: str
    partitions: Partitions


class StateNotInitialized(NamedTuple):
    """The state of these partitions could not be stored; the next heartbeat tries again."""

    group_id: str
    partitions: Partitions


class AlterShareOffsets(NamedTuple):
    """The state of these partitions is about to begin anew. The answer is a StateToInitialize."""

    group_id: str
    partitions: Partitions


class BeginStateDeletion(NamedTuple):
    """The state of these topics, or of all, is about to be deleted. The answer is a StateToDelete."""

    group_id: str
    topic_ids: Sequence[TopicId] | None


class StateToDelete(NamedTuple):
    """The partitions that have state. Topics without any are left out."""

    partitions: Partitions


class StateDeleted(NamedTuple):
    """The state of these topics is gone."""

    group_id: str
    topic_ids: Sequence[TopicId]


class ShareSessionExpired(NamedTuple):
    """A member was not heard of for too long."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """What counts for the membership of one share group, with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    """The least time between two assignments: many members that join at once cost one or two."""
    size_max: int = 200
    initialize_retry_ms: int = 30_000
    """After how long the state of a partition that could not be prepared is tried again."""
    is_paused: bool = False
    """Whether nothing is delivered: then the group may be moved although it has members."""
