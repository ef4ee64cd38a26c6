"""One partition's share groups without a broker; whoever runs it stands in for the coordinators of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.core.override import override
from millrace.groups.consumer.commands import Beat
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.groups.share.commands import (
    BeatBeforeState,
    ShareGroupSettings,
    ShareHeartbeat,
    StateInitialized,
)
from millrace.groups.share.group import ShareGroup
from millrace.groups.share.rules import RulesOfShareGroups
from tests.unit.groups import consumer_lab

GROUP = consumer_lab.GROUP


class ShareLab(consumer_lab.Lab):
    """A lab whose groups are share groups."""

    def __init__(self, settings: ShareGroupSettings | None = None) -> None:
        self.share_settings = settings or ShareGroupSettings(assignment_interval_ms=0)
        super().__init__()

    @override
    def new_machine(self) -> GroupMachine:
        return GroupMachine(
            self.classic_settings,
            self.consumer_rules,
            [
                lambda shard: RulesOfShareGroups(
                    shard, ConsumerTopics(lambda: self.image), lambda _: self.share_settings
                )
            ],
        )

    @property
    def shares(self) -> ShareGroup:
        group = self.machine.groups[GROUP]
        assert isinstance(group, ShareGroup), group
        return group

    def join(self, member_id: str, *names: str) -> Beat:
        """Join as the broker has it: state is stored in the course of the first heartbeat."""
        return self.beat(ShareHeartbeat(GROUP, member_id, 0, topic_names=names or ("t",)))

    def beat(self, command: ShareHeartbeat) -> Beat:
        answer = self.submit(command)
        if isinstance(answer, BeatBeforeState):
            self.submit(StateInitialized(command.group_id, answer.missing.partitions))
            again = ShareHeartbeat(command.group_id, command.member_id, answer.beat.member_epoch)
            answer = self.submit(again)
        assert isinstance(answer, Beat), answer
        return answer

    def stay(self, member_id: str) -> Beat:
        return self.beat(ShareHeartbeat(GROUP, member_id, self.shares.members[member_id].epoch))


def numbers(beat: Beat) -> list[int] | None:
    """The partitions of an answer, whatever their topics."""
    if beat.assignment is None:
        return None
    return [number for partitions in beat.assignment.values() for number in partitions]


def stored_share(group: ShareGroup) -> dict[str, Any]:
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "assignment": (group.assignment_epoch, group.assigned_at_ms),
        "members": group.members,
        "target": group.target,
        "state": group.state,
    }


def joining(member_id: str, names: Sequence[str] = ("t",), group_id: str = GROUP) -> ShareHeartbeat:
    return ShareHeartbeat(group_id, member_id, 0, topic_names=names)
