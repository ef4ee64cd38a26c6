"""What a change in a streams group leads to: its topology, a plan for it, a new epoch, a new target, and a
member's next step towards it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millrace.coordinator.decision import Record
from millrace.groups.consumer.changes import may_assign
from millrace.groups.consumer.reconciliation import Reconciliation, time_revocation
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import FencedMemberEpoch, InvalidHeartbeat
from millrace.groups.streams.assignor import StreamsMemberSpec, assign
from millrace.groups.streams.commands import (
    InitialAssignmentDue,
    NewInternalTopic,
    Status,
    StatusCode,
    StreamsRevocationExpired,
    StreamsSettings,
)
from millrace.groups.streams.group import NOT_VALIDATED, StreamsGroup, target_record
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.plan import Plan, plan
from millrace.groups.streams.tasks import NO_TASKS, OwnedTasks, Tasks
from millrace.groups.streams.topology import Topology
from millrace.wire.messages import streams_group_records as stored

STANDBY_COUNT: Final = "num.standby.replicas"
"""The name under which records keep the setting that a target was computed with."""


class StreamsChanges:
    """Works out, for one group at a time, the records that a change leads to."""

    def __init__(self, topics: ConsumerTopics, settings_of: Callable[[str], StreamsSettings]) -> None:
        self._topics = topics
        self._settings_of = settings_of
        self._delayed: dict[str, None] = {}
        """Groups that wait for more members before their first assignment."""

    def topology_for(
        self, group: StreamsGroup, member: StreamsMember, told: Topology | None, out: Effects
    ) -> Topology:
        """The topology that counts: the group's, or that of the first member of an empty group."""
        present = group.topology
        if told is None:
            if present is None:
                # Whoever joins brings a topology, so let the member join again.
                raise FencedMemberEpoch(member.member_id, member.epoch, current=group.epoch)
            return present
        if present is not None and (told.epoch < present.epoch or told == present):
            return present
        if present is not None and not group.is_empty:
            raise InvalidHeartbeat(
                "Topology updates are not supported yet. Stop all members: the first to join again brings "
                "the new topology."
            )
        out.records.append(Record(stored.StreamsGroupTopologyKey(group_id=group.group_id), told.value))
        return told

    def plan_for(self, group: StreamsGroup, topology: Topology) -> tuple[Plan, int]:
        """The plan for the topics as they are now, and the hash of those topics."""
        revision = self._topics.revision
        is_known = group.plan is not None and topology is group.topology
        if is_known and group.checked_revision == revision:
            assert group.plan is not None
            return group.plan, group.plan_hash
        metadata_hash = self._topics.hash_of(topology.required_topics)
        found = group.plan
        if found is None or not is_known or metadata_hash != group.plan_hash:
            found = plan(topology, self._topics.partitions_of)
        if topology is group.topology:
            group.plan, group.plan_hash, group.checked_revision = found, metadata_hash, revision
        return found, metadata_hash

    def advance(
        self,
        group: StreamsGroup,
        before: StreamsMember | None,
        member: StreamsMember,
        topology: Topology,
        *,
        owned: OwnedTasks | None,
        statuses: list[Status],
        out: Effects,
        now_ms: int,
    ) -> tuple[StreamsMember, tuple[NewInternalTopic, ...]]:
        """Renew epoch and target if needed, and take the member's next step. Returns the member after it, and
        the topics that have to be created."""
        found, metadata_hash = self.plan_for(group, topology)
        if found.is_ready:
            _check_tasks(owned or (), found.task_counts)
        validated = topology.epoch if found.is_ready else NOT_VALIDATED
        configs = self._configs(group.group_id)
        epoch = group.epoch
        if (
            member != before
            or topology is not group.topology
            or metadata_hash != group.metadata_hash
            or validated != group.validated_topology_epoch
            or configs != group.assignment_configs
        ):
            epoch += 1
            out.records.append(_epoch_record(group.group_id, epoch, metadata_hash, validated, configs))
        if group.is_empty:
            self._delay(group.group_id, out)
        target_epoch, target = group.assignment_epoch, group.target_of(member.member_id)
        if group.group_id in self._delayed:
            target = NO_TASKS
            statuses.append(_delayed("initial rebalance delay"))
        elif epoch > target_epoch:
            if self._may_assign(group, now_ms):
                members = {**group.members, member.member_id: member}
                target = self._assign(group, epoch, members, topology, found, out, now_ms)[member.member_id]
                target_epoch = epoch
            else:
                statuses.append(_delayed("assignment interval"))
        if found.problem is not None:
            statuses.append(found.problem)
        return self._reconcile(group, member, target_epoch, target, owned, out), found.missing

    def initial_assignment(
        self, group_id: str, group: StreamsGroup | None, out: Effects, now_ms: int
    ) -> None:
        """Compute the first target of a group whose delay is over."""
        self._delayed.pop(group_id, None)
        if group is None or group.is_empty or group.topology is None or group.epoch <= group.assignment_epoch:
            return
        if self._may_assign(group, now_ms):
            found, _ = self.plan_for(group, group.topology)
            self._assign(group, group.epoch, group.members, group.topology, found, out, now_ms)

    def after_removal(self, group: StreamsGroup, out: Effects) -> None:
        """Let the group's epoch grow after a member is gone; the next heartbeat computes its target."""
        out.records.append(
            _epoch_record(
                group.group_id,
                group.epoch + 1,
                group.metadata_hash,
                group.validated_topology_epoch,
                group.assignment_configs,
            )
        )

    def _configs(self, group_id: str) -> dict[str, str]:
        return {STANDBY_COUNT: str(self._settings_of(group_id).standby_count)}

    def _delay(self, group_id: str, out: Effects) -> None:
        delay_ms = self._settings_of(group_id).initial_rebalance_delay_ms
        if delay_ms > 0 and group_id not in self._delayed:
            self._delayed[group_id] = None
            out.set_timer(("initial assignment", group_id), delay_ms, InitialAssignmentDue(group_id))

    def _may_assign(self, group: StreamsGroup, now_ms: int) -> bool:
        interval_ms = self._settings_of(group.group_id).assignment_interval_ms
        return may_assign(group.assigned_at_ms, interval_ms, now_ms)

    def _assign(
        self,
        group: StreamsGroup,
        epoch: int,
        members: Mapping[str, StreamsMember],
        topology: Topology,
        found: Plan,
        out: Effects,
        now_ms: int,
    ) -> Mapping[str, Tasks]:
        specs = {
            member_id: StreamsMemberSpec(member.process_id, group.target_of(member_id))
            for member_id, member in members.items()
        }
        assignment = assign(
            specs,
            # A group that is not ready has no tasks: its members give up what they had.
            found.task_counts if found.is_ready else {},
            stateful=[name for name, each in topology.subtopologies.items() if each.state_changelog_topics],
            standby_count=self._settings_of(group.group_id).standby_count,
        )
        for member_id, tasks in assignment.items():
            if member_id not in group.target or group.target[member_id] != tasks:
                out.records.append(target_record(group.group_id, member_id, tasks))
        out.records.append(
            Record(
                stored.StreamsGroupTargetAssignmentMetadataKey(group_id=group.group_id),
                stored.StreamsGroupTargetAssignmentMetadataValue(
                    assignment_epoch=epoch, assignment_timestamp=now_ms
                ),
            )
        )
        return assignment

    def _reconcile(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        target_epoch: int,
        target: Tasks,
        owned: OwnedTasks | None,
        out: Effects,
    ) -> StreamsMember:
        after = Reconciliation(
            member,
            target_epoch=target_epoch,
            target=target,
            owner_of=lambda place, number: group.holder_against(member, place, number),
            owned=owned,
            subscribed=target,
        ).step(has_subscription_changed=False)
        if after is not member:
            out.records.append(after.assignment_record(group.group_id))
            time_revocation(group.group_id, after, out, StreamsRevocationExpired)
        return after


def _check_tasks(owned: OwnedTasks, task_counts: Mapping[str, int]) -> None:
    for (_, subtopology), numbers in owned:
        count = task_counts.get(subtopology)
        if count is None:
            raise InvalidHeartbeat(f"Subtopology {subtopology} does not exist in the topology.")
        for number in numbers:
            if not 0 <= number < count:
                raise InvalidHeartbeat(
                    f"Task {number} for subtopology {subtopology} is invalid. Number of tasks for this "
                    f"subtopology: {count}"
                )


def _delayed(what: str) -> Status:
    return Status(StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {what}.")


def _epoch_record(
    group_id: str, epoch: int, metadata_hash: int, validated: int, configs: Mapping[str, str]
) -> Record:
    return Record(
        stored.StreamsGroupMetadataKey(group_id=group_id),
        stored.StreamsGroupMetadataValue(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=validated,
            last_assignment_configs=[
                stored.LastAssignmentConfig(key=key, value=value) for key, value in sorted(configs.items())
            ],
        ),
    )
