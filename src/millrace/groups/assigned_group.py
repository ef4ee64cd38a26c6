"""What groups have in common whose coordinator assigns: those of the consumer protocol, share groups, and
streams groups.

They have three epochs. The group's grows with every change of members, subscriptions or topics; the
assignment's follows when a new target has been computed; each member's follows when the member has taken the
step to that target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from millrace.coordinator.decision import Record
from millrace.groups.kinds import Group

NEVER_CHECKED: Final = -1

M = TypeVar("M")
T = TypeVar("T")
G = TypeVar("G", bound="StoredGroup")


class StoredTargetEpoch(Protocol):
    """The record of a group's target, without what members get."""

    assignment_epoch: int
    assignment_timestamp: int


class StoredGroup(Group, Protocol):
    """A group that is changed by its records."""

    def __init__(self, group_id: str) -> None: ...

    def apply(self, record: Record) -> None: ...


class AssignedGroup(Generic[M, T]):
    """Members `M` with targets `T`, and the epochs of the group."""

    FIRST_EPOCH: int = 0
    """The epoch of a group and of its assignment before anything has happened."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = self.FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = self.FIRST_EPOCH
        self.assigned_at_ms = 0
        self.members: dict[str, M] = {}
        self.target: dict[str, T] = {}
        # Soft state, lost with the coordinator.
        self.checked_revision = NEVER_CHECKED
        """The revision of the metadata that the group's hash was last compared with."""
        self.last_heartbeat_ms: dict[str, int] = {}

    def apply_target_epoch(self, value: StoredTargetEpoch | None) -> None:
        if value is None:
            self.assignment_epoch, self.assigned_at_ms = self.FIRST_EPOCH, 0
        else:
            self.assignment_epoch = value.assignment_epoch
            self.assigned_at_ms = value.assignment_timestamp

    @property
    def is_empty(self) -> bool:
        return not self.members

    def offsets_age_since(self, commit_ms: int) -> int | None:
        return commit_ms

    def tombstones_of_members(self, keys: Sequence[Callable[..., object]]) -> list[Record]:
        """The records that remove all who are or were to become members."""
        return [
            record
            for member_id in sorted({*self.members, *self.target})
            for record in tombstones(keys, group_id=self.group_id, member_id=member_id)
        ]


def tombstones(keys: Iterable[Callable[..., object]], **key: str) -> list[Record]:
    """The records that remove what these types of keys stand for."""
    return [Record(of_type(**key), None) for of_type in keys]


def apply_to_group(
    groups: dict[str, Group],
    record: Record,
    kind: type[G],
    metadata_key: type,
    gone: Callable[[str], None],
) -> None:
    """Apply a record to its group, which comes with its first record and goes with the tombstone of its
    metadata: `gone` hears of that."""
    group_id: str = record.key.group_id  # type: ignore[attr-defined]
    group = groups.get(group_id)
    if isinstance(record.key, metadata_key) and record.value is None:
        if isinstance(group, kind):
            del groups[group_id]
            gone(group_id)
        return
    if not isinstance(group, kind):
        if record.value is None:
            # The group has become one of another kind, or is gone already.
            return
        group = groups[group_id] = kind(group_id)
    group.apply(record)
