"""What can be asked of groups of the consumer protocol (KIP-848), what they answer, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.core.ids import TopicId

JOINING: Final = 0
"""The epoch of a member that joins, or joins again without any partitions."""
LEAVING: Final = -1
LEAVING_FOR_A_WHILE: Final = -2
"""The epoch of a static member that will be back: its partitions wait for it as long as its session lasts."""
UNCHANGED: Final = -1
"""Stands for a rebalance time-out that the member has told before."""


class ConsumerHeartbeat(NamedTuple):
    """A heartbeat. A field that is None has not changed since the member last told it."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = UNCHANGED
    topic_names: Sequence[str] | None = None
    topic_pattern: str | None = None
    server_assignor: str | None = None
    owned: Sequence[tuple[TopicId, Sequence[int]]] | None = None
    client_id: str = ""
    client_host: str = ""
    new_member_id: str = ""
    """For a member that brings no id, as those of version 0 may."""
    resolved: Mapping[str, frozenset[str]] | None = None
    """The topics that the pattern matches, found outside of the rules."""


class Beat(NamedTuple):
    """The answer to a heartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Mapping[TopicId, Sequence[int]] | None = None
    """What the member may consume from now on; None if nothing has changed."""


class PatternsResolved(NamedTuple):
    """Topics have come or gone: this is what the group's patterns match now."""

    group_id: str
    resolved: Mapping[str, frozenset[str]]


class SessionExpired(NamedTuple):
    """A member was not heard of for too long."""

    group_id: str
    member_id: str


class RevocationExpired(NamedTuple):
    """A member had its rebalance time-out to give partitions up."""

    group_id: str
    member_id: str
    member_epoch: int


class RejoinExpired(NamedTuple):
    """A classic member was told to join again and did not."""

    group_id: str
    member_id: str


class ResyncExpired(NamedTuple):
    """A classic member has joined and never asked for its assignment."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The `group.consumer.*` settings, with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    assignment_interval_ms: int = 1_000
    """The least time between two assignments of one group: many members that join at once cost one or two."""

    @property
    def allows_upgrade(self) -> bool:
        return self.migration_policy in ("bidirectional", "upgrade")

    @property
    def allows_downgrade(self) -> bool:
        return self.migration_policy in ("bidirectional", "downgrade")
