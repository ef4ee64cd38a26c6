"""The stored state of one group of the streams protocol (KIP-1071). Only `apply` changes it.

A member takes the step to its target when it has given up what the target does not leave it. `holders` names
who has a task in a role, or was told to give it up and has not said yet that it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.coordinator.decision import Record, Timer
from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups.assigned_group import AssignedGroup, tombstones
from millrace.groups.errors import StaleMemberEpoch, UnknownMember
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.plan import Plan
from millrace.groups.streams.tasks import NO_TASKS, Role, TaskPlace, Tasks, TasksWithEpochs, of_role
from millrace.groups.streams.topology import Topology
from millrace.wire.messages import streams_group_records as stored
from millrace.wire.messages.streams_group_records import (
    StreamsGroupTargetAssignmentMemberTaskIds as StoredTasks,
)
from millrace.wire.messages.streams_group_records import (
    StreamsGroupTargetAssignmentMemberValue as StoredTarget,
)

STREAMS: Final = "streams"
NOT_VALIDATED: Final = -1
_MEMBER_KEYS: Final = (
    stored.StreamsGroupCurrentMemberAssignmentKey,
    stored.StreamsGroupTargetAssignmentMemberKey,
    stored.StreamsGroupMemberMetadataKey,
)
"""The metadata goes last, so no other record of a member is left alone."""
_GROUP_KEYS: Final = (
    stored.StreamsGroupTargetAssignmentMetadataKey,
    stored.StreamsGroupTopologyKey,
    stored.StreamsGroupMetadataKey,
)


class StreamsGroup(AssignedGroup[StreamsMember, Tasks]):
    """One group. Records change it through `apply`; its soft state changes while it is served."""

    FIRST_EPOCH = 1

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.validated_topology_epoch = NOT_VALIDATED
        """The epoch of the topology whose topics are all there; NOT_VALIDATED while some are not."""
        self.assignment_configs: dict[str, str] = {}
        """The settings with which the target was computed."""
        self.topology: Topology | None = None
        self.holders: dict[tuple[TaskPlace, int], dict[str, None]] = {}
        # Soft state, lost with the coordinator.
        self.plan: Plan | None = None
        self.plan_hash = 0
        """The hash of the topics that the plan was made for."""
        self.endpoint_epoch = 0
        """Grows when the tasks change of a member that answers queries."""
        self.shut_down_by: str | None = None
        """The member that wants the whole application to stop."""
        self.last_commit_ms: dict[str, int] = {}

    @override
    def __repr__(self) -> str:
        return f"<StreamsGroup {self.group_id} {self.state_name} {self.epoch} {list(self.members)}>"

    # Applying records.

    def apply(self, record: Record) -> None:
        key, value = record
        match key, value:
            case stored.StreamsGroupMetadataKey(), stored.StreamsGroupMetadataValue():
                self.epoch = value.epoch
                self.metadata_hash = value.metadata_hash
                self.validated_topology_epoch = value.validated_topology_epoch
                self.assignment_configs = {
                    config.key: config.value for config in value.last_assignment_configs or ()
                }
            case stored.StreamsGroupTopologyKey(), (stored.StreamsGroupTopologyValue() | None):
                self.topology = None if value is None else Topology(value)
                self.plan = None
            case stored.StreamsGroupMemberMetadataKey(member_id=member_id), _:
                self._apply_metadata(member_id, value)
            case (
                stored.StreamsGroupTargetAssignmentMetadataKey(),
                (stored.StreamsGroupTargetAssignmentMetadataValue() | None),
            ):
                self.apply_target_epoch(value)
            case stored.StreamsGroupTargetAssignmentMemberKey(member_id=member_id), _:
                self._apply_target(member_id, value)
            case stored.StreamsGroupCurrentMemberAssignmentKey(member_id=member_id), _:
                self._apply_assignment(member_id, value)
            case _:
                raise AssertionError(record)

    def _apply_metadata(self, member_id: str, value: object) -> None:
        member = self.members.get(member_id)
        if value is None:
            if member is not None:
                self._remove(member)
            return
        assert isinstance(value, stored.StreamsGroupMemberMetadataValue), value
        self.members[member_id] = (member or StreamsMember(member_id=member_id)).with_metadata(value)

    def _remove(self, member: StreamsMember) -> None:
        self._release(member)
        del self.members[member.member_id]
        self.last_heartbeat_ms.pop(member.member_id, None)
        self.last_commit_ms.pop(member.member_id, None)
        if member.endpoint is not None:
            self.endpoint_epoch += 1
        if not self.members:
            self.shut_down_by = None

    def _apply_target(self, member_id: str, value: object) -> None:
        if value is None:
            self.target.pop(member_id, None)
            return
        assert isinstance(value, StoredTarget), value
        self.target[member_id] = {
            (role, each.subtopology_id): frozenset(each.partitions)
            for role, tasks in zip(
                Role, (value.active_tasks, value.standby_tasks, value.warmup_tasks), strict=True
            )
            for each in tasks
        }

    def _apply_assignment(self, member_id: str, value: object) -> None:
        assert value is None or isinstance(value, stored.StreamsGroupCurrentMemberAssignmentValue), value
        before = self.members.get(member_id)
        if before is None:
            if value is None:
                return
            # A compacted log may have a member's assignment before its metadata.
            before = StreamsMember(member_id=member_id)
        after = before.with_assignment(value)
        self._release(before)
        for task in _tasks(after.assigned, after.revoking):
            self.holders.setdefault(task, {})[member_id] = None
        self.members[member_id] = after

    def _release(self, member: StreamsMember) -> None:
        for task in _tasks(member.assigned, member.revoking):
            holders = self.holders.get(task)
            if holders is not None:
                holders.pop(member.member_id, None)
                if not holders:
                    del self.holders[task]

    # What others ask.

    def holder_against(self, member: StreamsMember, place: TaskPlace, number: int) -> str | None:
        """Another member that keeps this one from a task: whoever has it as active, if it is to be active
        here, and whoever has it in the same process, for a process keeps one copy of a task's state."""
        role, subtopology = place
        for other_role in Role:
            for holder in self.holders.get(((other_role, subtopology), number), ()):
                if holder == member.member_id:
                    continue
                is_active_twice = role is other_role is Role.ACTIVE
                if is_active_twice or self.members[holder].process_id == member.process_id:
                    return holder
        return None

    def target_of(self, member_id: str) -> Tasks:
        return self.target.get(member_id, NO_TASKS)

    @property
    def type_name(self) -> str:
        return STREAMS

    @property
    def protocol_type(self) -> str:
        return STREAMS

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return "NotReady"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.has_reached(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def check_commit(
        self, *, member_id: str, instance_id: str | None, generation: int
    ) -> MillraceError | None:
        if generation < 0 and not self.members:
            return None
        return self.check_epoch(member_id, generation)

    def check_fetch(self, *, member_id: str | None, member_epoch: int) -> MillraceError | None:
        if member_id is None and member_epoch < 0:
            return None
        return self.check_epoch(member_id or "", member_epoch)

    def check_epoch(self, member_id: str, epoch: int) -> MillraceError | None:
        member = self.members.get(member_id)
        if member is None:
            return UnknownMember(self.group_id, member_id)
        return None if epoch == member.epoch else StaleMemberEpoch(member_id, epoch, current=member.epoch)

    def check_commit_of(
        self, *, member_id: str, generation: int, topic: str, partition: int
    ) -> MillraceError | None:
        """Why a member may not commit to this partition, or None. A member that has not heard of its newest
        epoch may still commit for tasks that it had before."""
        error = self.check_epoch(member_id, generation)
        member = self.members.get(member_id)
        if error is None or member is None or self.topology is None or generation > member.epoch:
            return error
        subtopology = self.topology.subtopology_of.get(topic)
        if subtopology is None:
            return error
        for owned in (member.assigned, member.revoking):
            since = owned.get((Role.ACTIVE, subtopology), {}).get(partition)
            if since is not None and generation >= since:
                return None
        return error

    def check_offset_delete(self) -> MillraceError | None:
        return None

    def is_subscribed(self, topic: str) -> bool:
        return bool(self.members) and self.topology is not None and topic in self.topology.subtopology_of

    def committed(self, member_id: str, now_ms: int) -> tuple[Timer, ...]:
        self.last_commit_ms[member_id] = now_ms
        return ()

    def tombstones(self) -> tuple[Record, ...]:
        return (*self.tombstones_of_members(_MEMBER_KEYS), *tombstones(_GROUP_KEYS, group_id=self.group_id))


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """The records that remove a member."""
    return tombstones(_MEMBER_KEYS, group_id=group_id, member_id=member_id)


def target_record(group_id: str, member_id: str, tasks: Tasks) -> Record:
    active, standby, warmup = (
        [
            StoredTasks(subtopology_id=subtopology, partitions=numbers)
            for subtopology, numbers in of_role(tasks, role)
        ]
        for role in Role
    )
    return Record(
        stored.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        StoredTarget(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup),
    )


def _tasks(*owned: TasksWithEpochs) -> Iterable[tuple[TaskPlace, int]]:
    for tasks in owned:
        for place, epochs in tasks.items():
            for number in epochs:
                yield place, number
