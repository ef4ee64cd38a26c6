"""What a change in a share group leads to: a new epoch, a new target, and a member's step to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId
from millrace.groups.assignors import GroupAssignment, MemberSpec, Partitions
from millrace.groups.assignors.simple import assign_simple
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.share.commands import ShareGroupSettings
from millrace.groups.share.group import ShareGroup
from millrace.groups.share.member import ShareMember
from millrace.wire.messages import share_group_records as stored


class ShareChanges:
    """Works out, for one group at a time, the records that a change leads to."""

    def __init__(self, topics: ConsumerTopics) -> None:
        self._topics = topics

    def advance(
        self,
        group: ShareGroup,
        before: ShareMember | None,
        member: ShareMember,
        settings: ShareGroupSettings,
        out: Effects,
        now_ms: int,
    ) -> tuple[ShareMember, int]:
        """Store what the member tells, renew epoch and target if needed, and take the member to its target.
        Returns the member and the group's epoch."""
        if before != member:
            out.records.append(member.metadata_record(group.group_id))
        members = {**group.members, member.member_id: member}
        has_news = before is None or before.topic_names != member.topic_names
        if group.assignment_epoch >= group.epoch and not has_news:
            # State that has come since the last assignment is a reason for a new one.
            has_news = self._is_state_unassigned(group)
        epoch = self._update_epoch(group, members.values(), out, must_grow=has_news)
        target_epoch, target = group.assignment_epoch, group.target_of(member.member_id)
        if epoch > target_epoch and _may_assign(group, settings, now_ms):
            target = self._update_target(group, epoch, members, out, now_ms)[member.member_id]
            target_epoch = epoch
        if target_epoch == member.epoch and not has_news and before is not None:
            return member, epoch
        subscribed = self._topics.ids_of(member.topic_names)
        assigned = {topic: partitions for topic, partitions in target.items() if topic in subscribed}
        after = replace(member, assigned=assigned)
        if target_epoch != member.epoch:
            after = replace(after, epoch=target_epoch, previous_epoch=member.epoch)
        if after != member or before is None:
            out.records.append(after.assignment_record(group.group_id))
        return after, epoch

    def after_removal(self, group: ShareGroup, removed: str, out: Effects) -> None:
        """Let the group's epoch grow after a member is gone; the next heartbeat computes its target."""
        members = [member for member in group.members.values() if member.member_id != removed]
        self._update_epoch(group, members, out, must_grow=True)

    def store_epoch(self, group: ShareGroup, epoch: int, metadata_hash: int, out: Effects) -> None:
        out.records.append(
            Record(
                stored.ShareGroupMetadataKey(group_id=group.group_id),
                stored.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
            )
        )

    def _is_state_unassigned(self, group: ShareGroup) -> bool:
        """Whether partitions that have state and subscribers are missing in the target, or the other way."""
        assigned: dict[TopicId, frozenset[int]] = {}
        for target in group.target.values():
            for topic, partitions in target.items():
                assigned[topic] = assigned.get(topic, frozenset()) | partitions
        names = group.topic_names
        return any(
            named.partitions != assigned.get(topic)
            for topic, named in group.state.initialized.items()
            if named.name in names and self._topics.name_of(topic) is not None
        )

    def _update_epoch(
        self, group: ShareGroup, members: Iterable[ShareMember], out: Effects, *, must_grow: bool
    ) -> int:
        """The group's epoch, which has grown if something that assignments depend on has changed."""
        revision = self._topics.revision
        if not must_grow and revision == group.checked_revision:
            return group.epoch
        metadata_hash = self._topics.hash_of({name for member in members for name in member.topic_names})
        group.checked_revision = revision
        if not must_grow and metadata_hash == group.metadata_hash:
            return group.epoch
        self.store_epoch(group, group.epoch + 1, metadata_hash, out)
        return group.epoch + 1

    def _update_target(
        self,
        group: ShareGroup,
        epoch: int,
        members: Mapping[str, ShareMember],
        out: Effects,
        now_ms: int,
    ) -> GroupAssignment:
        ids: dict[tuple[str, ...], frozenset[TopicId]] = {}
        specs = {}
        for member_id, member in members.items():
            wanted = ids.get(member.topic_names)
            if wanted is None:
                wanted = ids[member.topic_names] = self._topics.ids_of(member.topic_names)
            specs[member_id] = MemberSpec(topics=wanted, present=group.target_of(member_id))
        assignment = assign_simple(specs, group.state.assignable())
        for member_id, partitions in assignment.items():
            if member_id not in group.target or group.target[member_id] != partitions:
                out.records.append(_target_record(group.group_id, member_id, partitions))
        out.records.append(
            Record(
                stored.ShareGroupTargetAssignmentMetadataKey(group_id=group.group_id),
                stored.ShareGroupTargetAssignmentMetadataValue(
                    assignment_epoch=epoch, assignment_timestamp=now_ms
                ),
            )
        )
        return assignment


def _may_assign(group: ShareGroup, settings: ShareGroupSettings, now_ms: int) -> bool:
    since_ms = now_ms - group.assigned_at_ms
    if since_ms < 0 or since_ms >= settings.assignment_interval_ms:
        # A clock that was set back must not keep a group from its assignment.
        return True
    # A new group has nothing to share at first: what it gets then must not wait.
    return not any(group.target.values())


def _target_record(group_id: str, member_id: str, partitions: Partitions) -> Record:
    return Record(
        stored.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                stored.TopicPartition(topic_id=topic, partitions=sorted(partitions[topic]))
                for topic in sorted(partitions)
            ]
        ),
    )
