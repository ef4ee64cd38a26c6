"""What assignors are told and what they answer. They are pure functions: equal input, equal assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from millrace.core.ids import TopicId

Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]
"""Some partitions, by topic. Topics without any are left out."""

NO_RACKS: tuple[frozenset[str], ...] = ()


class TopicShape(NamedTuple):
    """What an assignor has to know of a topic."""

    partition_count: int
    racks: tuple[frozenset[str], ...] = NO_RACKS
    """For each partition the racks that have a replica; empty where racks are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """What an assignor has to know of a member."""

    topics: frozenset[TopicId]
    """The topics that the member is subscribed to; some of them may not exist."""
    present: Partitions = field(default_factory=dict)
    """The member's target so far."""
    instance_id: str | None = None
    rack: str | None = None


GroupAssignment: TypeAlias = dict[str, dict[TopicId, frozenset[int]]]
Assignor: TypeAlias = Callable[[Mapping[str, MemberSpec], Mapping[TopicId, TopicShape]], GroupAssignment]
