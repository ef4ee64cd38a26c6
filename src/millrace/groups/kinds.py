"""What the machine may ask a group of either protocol, so that offsets and admin calls serve both."""

from __future__ import annotations

from typing import Protocol

from millrace.coordinator.decision import Decision, Record, Timer, Token
from millrace.core.errors import MillraceError
from millrace.groups.commands import CommitOffsets


class Group(Protocol):
    """A classic or a consumer group. Nothing here changes it, but `committed` notes a sign of life."""

    group_id: str

    @property
    def type_name(self) -> str:
        """ "classic" or "consumer", as ListGroups shows it."""

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


class ConsumerRules(Protocol):
    """The rules of KIP-848 groups, as the shard calls them."""

    def decide(self, command: object, now_ms: int, token: Token) -> Decision[object]:
        """Decide a command of the consumer protocol, or a classic one whose group is a consumer group."""

    def apply(self, record: Record) -> None:
        """Apply a record whose key is one of the ConsumerGroup* classes."""

    def refusals(self, group: Group, command: CommitOffsets) -> list[MillraceError | None] | None:
        """For each offset of a commit with an old epoch, why it is refused, or None if it may pass. The
        result is None if all are refused, for the reason that the group gave."""

    def resume(self, group: Group, now_ms: int) -> tuple[Timer, ...]:
        """The timers of a group that was loaded."""
