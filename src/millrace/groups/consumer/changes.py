"""What a change in a consumer group leads to: a new epoch, a new target, a member's next step towards it.
Members of the consumer protocol and classic members inside a consumer group share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from millrace.coordinator.decision import Record
from millrace.core.ids import TopicId
from millrace.groups.assignors import ASSIGNORS, GroupAssignment, MemberSpec, Partitions
from millrace.groups.consumer.commands import ConsumerSettings, RevocationExpired
from millrace.groups.consumer.group import ConsumerGroup, ResolvedPattern, pattern_tombstone
from millrace.groups.consumer.member import ConsumerMember
from millrace.groups.consumer.reconciliation import Owned, Reconciliation, time_revocation
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.wire.messages import group_records as stored


class ConsumerChanges:
    """Works out, for one group at a time, the records that a change leads to."""

    def __init__(self, topics: ConsumerTopics, settings: Callable[[], ConsumerSettings]) -> None:
        self._topics = topics
        self._settings = settings

    def advance(
        self,
        group: ConsumerGroup,
        before: ConsumerMember | None,
        member: ConsumerMember,
        *,
        owned: Owned,
        resolved: Mapping[str, frozenset[str]] | None,
        out: Effects,
        now_ms: int,
    ) -> ConsumerMember:
        """Store what the member tells, renew epoch and target if needed, and take the member's next step."""
        old = before or ConsumerMember(member_id=member.member_id)
        if before is None or not before.tells_same_as(member):
            out.records.append(member.metadata_record(group.group_id))
        has_new_subscription = (
            member.topic_names != old.topic_names or member.topic_pattern != old.topic_pattern
        )
        patterns = self._update_patterns(group, old, member, resolved, out, now_ms)
        members = {**group.members, member.member_id: member}
        epoch = self._update_epoch(
            group,
            members.values(),
            patterns,
            out,
            must_grow=has_new_subscription or patterns is not group.patterns or group.epoch == 0,
        )
        target_epoch = group.assignment_epoch
        target = group.target_of(member.member_id)
        if epoch > target_epoch and may_assign(
            group.assigned_at_ms, self._settings().assignment_interval_ms, now_ms
        ):
            target = self._update_target(group, epoch, members, patterns, out, now_ms)[member.member_id]
            target_epoch = epoch
        return self._reconcile(
            group,
            member,
            Reconciliation(
                member,
                target_epoch=target_epoch,
                target=target,
                owner_of=group.owner_of,
                owned=owned,
                subscribed=self._topics.ids_of(group.topics_of(member, patterns)),
            ),
            out,
            has_subscription_changed=has_new_subscription,
        )

    def after_removal(self, group: ConsumerGroup, removed: Iterable[str], out: Effects) -> None:
        """Let the group's epoch grow after members are gone; the next heartbeat computes its target."""
        gone = set(removed)
        members = [member for member in group.members.values() if member.member_id not in gone]
        in_use = {member.topic_pattern for member in members}
        patterns = {pattern: found for pattern, found in group.patterns.items() if pattern in in_use}
        out.records += [
            pattern_tombstone(group.group_id, each) for each in group.patterns if each not in in_use
        ]
        self._update_epoch(group, members, patterns, out, must_grow=True)

    def patterns_resolved(
        self, group: ConsumerGroup, resolved: Mapping[str, frozenset[str]], out: Effects, now_ms: int
    ) -> None:
        changed = {
            pattern: topics
            for pattern, topics in resolved.items()
            if group.subscribers_of_pattern(pattern)
            and (pattern not in group.patterns or group.patterns[pattern].topics != topics)
        }
        if not changed:
            return
        patterns = dict(group.patterns)
        for pattern, topics in changed.items():
            patterns[pattern] = self._resolve(group, pattern, topics, out, now_ms)
        self._update_epoch(group, group.members.values(), patterns, out, must_grow=True)

    # Patterns.

    def _update_patterns(
        self,
        group: ConsumerGroup,
        old: ConsumerMember,
        member: ConsumerMember,
        resolved: Mapping[str, frozenset[str]] | None,
        out: Effects,
        now_ms: int,
    ) -> dict[str, ResolvedPattern]:
        """The group's patterns with this member's; the same object if nothing has changed."""
        patterns = group.patterns
        pattern = old.topic_pattern
        is_gone = pattern and pattern != member.topic_pattern and pattern in patterns
        if is_gone and group.subscribers_of_pattern(pattern) == [member.member_id]:
            patterns = {each: found for each, found in patterns.items() if each != pattern}
            out.records.append(pattern_tombstone(group.group_id, pattern))
        pattern = member.topic_pattern
        if pattern and resolved is not None and pattern in resolved:
            present = patterns.get(pattern)
            if present is None or present.topics != resolved[pattern]:
                found = self._resolve(group, pattern, resolved[pattern], out, now_ms)
                patterns = {**patterns, pattern: found}
        return patterns

    def _resolve(
        self, group: ConsumerGroup, pattern: str, topics: frozenset[str], out: Effects, now_ms: int
    ) -> ResolvedPattern:
        found = ResolvedPattern(topics, self._topics.revision, now_ms)
        out.records.append(
            Record(
                stored.ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern),
                stored.ConsumerGroupRegularExpressionValue(
                    topics=sorted(topics), version=found.version, timestamp=now_ms
                ),
            )
        )
        return found

    # Epochs and targets.

    def _update_epoch(
        self,
        group: ConsumerGroup,
        members: Iterable[ConsumerMember],
        patterns: Mapping[str, ResolvedPattern],
        out: Effects,
        *,
        must_grow: bool,
    ) -> int:
        """The group's epoch, which has grown if something that assignments depend on has changed."""
        revision = self._topics.revision
        if not must_grow and revision == group.checked_revision:
            return group.epoch
        names: dict[str, None] = {}
        for member in members:
            names.update(dict.fromkeys(group.topics_of(member, patterns)))
        metadata_hash = self._topics.hash_of(names)
        group.checked_revision = revision
        if not must_grow and metadata_hash == group.metadata_hash:
            return group.epoch
        epoch = group.epoch + 1
        out.records.append(
            Record(
                stored.ConsumerGroupMetadataKey(group_id=group.group_id),
                stored.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
            )
        )
        return epoch

    def _update_target(
        self,
        group: ConsumerGroup,
        epoch: int,
        members: Mapping[str, ConsumerMember],
        patterns: Mapping[str, ResolvedPattern],
        out: Effects,
        now_ms: int,
    ) -> GroupAssignment:
        assignor = ASSIGNORS[preferred_assignor(members.values(), self._settings().assignors)]
        subscriptions: dict[tuple[tuple[str, ...], str], frozenset[TopicId]] = {}
        names: dict[str, None] = {}
        specs = {}
        for member_id, member in members.items():
            wanted = (member.topic_names, member.topic_pattern)
            ids = subscriptions.get(wanted)
            if ids is None:
                topics = group.topics_of(member, patterns)
                names.update(dict.fromkeys(topics))
                ids = subscriptions[wanted] = self._topics.ids_of(topics)
            specs[member_id] = MemberSpec(
                topics=ids,
                present=group.target_of(member_id),
                instance_id=member.instance_id,
                rack=member.rack,
            )
        assignment = assignor(specs, self._topics.shapes_of(names))
        for member_id, partitions in assignment.items():
            if member_id not in group.target or group.target[member_id] != partitions:
                out.records.append(target_record(group.group_id, member_id, partitions))
        out.records.append(target_epoch_record(group.group_id, epoch, now_ms))
        return assignment

    def _reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        reconciliation: Reconciliation[TopicId, ConsumerMember],
        out: Effects,
        *,
        has_subscription_changed: bool,
    ) -> ConsumerMember:
        after = reconciliation.step(has_subscription_changed=has_subscription_changed)
        if after == member and member.member_id in group.members:
            return member
        out.records.append(after.assignment_record(group.group_id))
        if after.classic is None:
            time_revocation(group.group_id, after, out, RevocationExpired)
        return after


def may_assign(assigned_at_ms: int, interval_ms: int, now_ms: int) -> bool:
    """Whether a group's last assignment is long enough ago for the next one."""
    since_ms = now_ms - assigned_at_ms
    # A clock that was set back must not keep a group from its assignment.
    return since_ms < 0 or since_ms >= interval_ms


def preferred_assignor(members: Iterable[ConsumerMember], known: Sequence[str]) -> str:
    """The assignor that most members ask for; if none does, the first of the broker's settings."""
    votes: dict[str, int] = {}
    for member in members:
        wish = member.server_assignor
        if wish is not None and wish in known:
            votes[wish] = votes.get(wish, 0) + 1
    return max(votes, key=lambda name: (votes[name], -known.index(name)), default=known[0])


def target_record(group_id: str, member_id: str, partitions: Partitions) -> Record:
    return Record(
        stored.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                stored.TopicPartition(topic_id=topic, partitions=sorted(partitions[topic]))
                for topic in sorted(partitions)
            ]
        ),
    )


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> Record:
    return Record(
        stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        stored.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=now_ms
        ),
    )
