"""What the machine may ask a group of any kind, so that offsets and admin calls serve all, and what the rules
of a kind are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from millrace.coordinator.decision import Decision, Record, Timer, Token
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.groups.commands import CommitOffsets


class Group(Protocol):
    """A group of any kind. Nothing here changes it, but `committed` notes a sign of life."""

    group_id: str

    @property
    def type_name(self) -> str:
        """Its kind in lower case, as "classic" or "share"; ListGroups shows it."""

    @property
    def protocol_type(self) -> str:
        """ "consumer" for consumers, "" for a group that only stores offsets."""

    @property
    def state_name(self) -> str: ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""

    def check_commit(
        self, *, member_id: str, instance_id: str | None, generation: int
    ) -> MillraceError | None:
        """Why this client may not commit offsets now, or None."""

    def check_fetch(self, *, member_id: str | None, member_epoch: int) -> MillraceError | None:
        """Why this client may not read offsets now, or None."""

    def check_offset_delete(self) -> MillraceError | None: ...

    def is_subscribed(self, topic: str) -> bool: ...

    def offsets_age_since(self, commit_ms: int) -> int | None:
        """From when on an offset that was committed at `commit_ms` ages; None while it does not age."""

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        """Note a commit of a member as a sign of life; returns the timers to set anew."""

    def tombstones(self) -> tuple[Record, ...]:
        """The records that remove this group, except for its offsets."""


class GroupRules(Protocol):
    """The rules of one kind of groups, as the shard calls them."""

    group_type: type
    """The class of its groups."""
    command_types: tuple[type, ...]
    """The commands that it decides on."""
    key_types: tuple[type, ...]
    """The keys of the records that it applies."""
    may_become_classic: bool
    """Whether an empty group gives way to a classic one when a classic member joins it."""
    groups_expire: bool = True
    """Whether a group that has neither members nor offsets is forgotten after a while."""

    def topics_deleted(self, topic_ids: Sequence[TopicId]) -> Iterable[Record]:
        """What is to be stored when topics are gone."""
        return ()

    def decide(self, command: object, now_ms: int, token: Token) -> Decision[object]: ...

    def apply(self, record: Record) -> None: ...

    def resume(self, group: Group, now_ms: int) -> tuple[Timer, ...]:
        """The timers of a group that was loaded."""

    def refusals(self, group: Group, command: CommitOffsets) -> list[MillraceError | None] | None:
        """For each offset of a commit with an old epoch, why it is refused, or None if it may pass. The
        result is None if all are refused, for the reason that the group gave."""
        return None


class ConsumerRules(GroupRules, Protocol):
    """The rules of KIP-848 groups. They also decide on classic commands whose group is a consumer group."""
