"""Why a group refuses a command. Each class is one answer of the protocol; the message is for people."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class GroupError(MillraceError):
    """The root of what groups refuse."""


class InvalidGroupId(GroupError):
    def __init__(self, group_id: str) -> None:
        super().__init__(f"{group_id!r} cannot be a group's id")


class GroupNotFound(GroupError):
    def __init__(self, group_id: str, reason: str = "not found") -> None:
        super().__init__(f"Group {group_id} {reason}.")


class UnknownMember(GroupError):
    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(f"{member_id or 'a client without a member id'} is no member of group {group_id}")


class FencedInstance(GroupError):
    def __init__(self, instance_id: str, member_id: str) -> None:
        super().__init__(f"the static member {instance_id} is no longer known as {member_id}")


class UnreleasedInstance(GroupError):
    def __init__(self, instance_id: str, member_id: str) -> None:
        super().__init__(f"the static member {instance_id} is still {member_id}")


class IllegalGeneration(GroupError):
    def __init__(self, group_id: str, generation: int, *, current: int) -> None:
        super().__init__(f"generation {generation} of group {group_id} is not the current {current}")


class StaleMemberEpoch(GroupError):
    def __init__(self, member_id: str, epoch: int, *, current: int) -> None:
        super().__init__(f"epoch {epoch} of member {member_id} is not the current {current}")


class FencedMemberEpoch(GroupError):
    def __init__(self, member_id: str, epoch: int, *, current: int) -> None:
        super().__init__(
            f"epoch {epoch} of member {member_id} is fenced by {current}: it must give up its partitions"
        )


class RebalanceInProgress(GroupError):
    def __init__(self, group_id: str) -> None:
        super().__init__(f"group {group_id} is rebalancing")


class InconsistentProtocol(GroupError):
    def __init__(self, group_id: str, reason: str) -> None:
        super().__init__(f"group {group_id}: {reason}")


class MemberIdRequired(GroupError):
    """A new member joins again with the id that it is given here."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as {member_id}")
        self.member_id = member_id


class GroupFull(GroupError):
    def __init__(self, group_id: str, *, size_max: int) -> None:
        super().__init__(f"group {group_id} has its largest size of {size_max} members")


class InvalidSessionTimeout(GroupError):
    def __init__(self, timeout_ms: int, *, low_ms: int, high_ms: int) -> None:
        super().__init__(f"a session time-out of {timeout_ms} ms; allowed are {low_ms} to {high_ms} ms")


class UnsupportedAssignor(GroupError):
    def __init__(self, assignor: str, *, known: str) -> None:
        super().__init__(f"no assignor {assignor!r}; there are {known}")


class GroupNotEmpty(GroupError):
    def __init__(self, group_id: str) -> None:
        super().__init__(f"group {group_id} has members")


class SubscribedToTopic(GroupError):
    def __init__(self, group_id: str, topic: str) -> None:
        super().__init__(f"group {group_id} is subscribed to {topic}")


class OffsetMetadataTooLarge(GroupError):
    def __init__(self, size: int, *, size_max: int) -> None:
        super().__init__(f"{size} characters of metadata beside an offset; {size_max} are allowed")


class InvalidHeartbeat(GroupError):
    """A ConsumerGroupHeartbeat that contradicts itself."""
