"""Why a group refuses a command. Each class is one answer of the protocol; the message is for people."""

from __future__ import annotations

from millrace.core.errors import MillraceError


class GroupError(MillraceError):
    """The root of what groups refuse."""


class InvalidGroupId(GroupError):
    """No group can have this id."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"{group_id!r} cannot be a group's id")


class GroupNotFound(GroupError):
    """There is no such group, or it is of another kind than the command."""

    def __init__(self, group_id: str, reason: str = "not found") -> None:
        super().__init__(f"Group {group_id} {reason}.")


class UnknownMember(GroupError):
    """The group does not know the member, which has to join anew, without an id."""

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(f"{member_id or 'a client without a member id'} is no member of group {group_id}")


class FencedInstance(GroupError):
    """Another process has come with the same instance id: the older one must stop."""

    def __init__(self, instance_id: str, member_id: str) -> None:
        super().__init__(f"the static member {instance_id} is no longer known as {member_id}")


class UnreleasedInstance(GroupError):
    """A static member may not be replaced before it has left."""

    def __init__(self, instance_id: str, member_id: str) -> None:
        super().__init__(f"the static member {instance_id} is still {member_id}")


class IllegalGeneration(GroupError):
    """A classic member speaks of a generation that is not the present one."""

    def __init__(self, group_id: str, generation: int, *, current: int) -> None:
        super().__init__(f"generation {generation} of group {group_id} is not the current {current}")


class StaleMemberEpoch(GroupError):
    """A member of the consumer protocol commits or reads with an epoch that is not its own."""

    def __init__(self, member_id: str, epoch: int, *, current: int) -> None:
        super().__init__(f"epoch {epoch} of member {member_id} is not the current {current}")


class FencedMemberEpoch(GroupError):
    """A member's heartbeat has an epoch that it cannot have: it must join again from nothing."""

    def __init__(self, member_id: str, epoch: int, *, current: int) -> None:
        super().__init__(
            f"epoch {epoch} of member {member_id} is fenced by {current}: it must give up its partitions"
        )


class RebalanceInProgress(GroupError):
    """The group is rebalancing: the member has to join again first."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"group {group_id} is rebalancing")


class InconsistentProtocol(GroupError):
    """The member offers nothing that all others have in common."""

    def __init__(self, group_id: str, reason: str) -> None:
        super().__init__(f"group {group_id}: {reason}")


class MemberIdRequired(GroupError):
    """A new member joins again with the id that it is given here."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as {member_id}")
        self.member_id = member_id


class GroupFull(GroupError):
    """The group takes no more members."""

    def __init__(self, group_id: str, *, size_max: int) -> None:
        super().__init__(f"group {group_id} has its largest size of {size_max} members")


class InvalidSessionTimeout(GroupError):
    """The member asks for a session that is too short or too long."""

    def __init__(self, timeout_ms: int, *, low_ms: int, high_ms: int) -> None:
        super().__init__(f"a session time-out of {timeout_ms} ms; allowed are {low_ms} to {high_ms} ms")


class UnsupportedAssignor(GroupError):
    """The member asks for an assignor that this broker does not have."""

    def __init__(self, assignor: str, *, known: str) -> None:
        super().__init__(f"no assignor {assignor!r}; there are {known}")


class GroupNotEmpty(GroupError):
    """The command needs a group without members."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"group {group_id} has members")


class SubscribedToTopic(GroupError):
    """The group reads the topic, so its offsets cannot be deleted."""

    def __init__(self, group_id: str, topic: str) -> None:
        super().__init__(f"group {group_id} is subscribed to {topic}")


class OffsetMetadataTooLarge(GroupError):
    """The text beside an offset is longer than the settings allow."""

    def __init__(self, size: int, *, size_max: int) -> None:
        super().__init__(f"{size} characters of metadata beside an offset; {size_max} are allowed")


class InvalidHeartbeat(GroupError):
    """A ConsumerGroupHeartbeat that contradicts itself."""


class InvalidTopology(GroupError):
    """No topics can satisfy the topology of a Kafka Streams application."""
