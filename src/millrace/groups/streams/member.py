"""One member of a streams group, as the stored records tell of it. It never changes, but is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.coordinator.decision import Record
from millrace.groups.consumer.member import MemberState
from millrace.groups.streams.commands import Endpoint
from millrace.groups.streams.tasks import NO_OWNED_TASKS, Role, TaskPlace, TasksWithEpochs, of_role
from millrace.wire.messages import streams_group_records as stored
from millrace.wire.messages.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentTaskIds as StoredTasks,
)
from millrace.wire.messages.streams_group_records import (
    StreamsGroupCurrentMemberAssignmentValue as StoredAssignment,
)

_STATES: Final = {
    1: MemberState.STABLE,
    2: MemberState.UNREVOKED_PARTITIONS,
    3: MemberState.UNRELEASED_PARTITIONS,
}
"""The states as the records of streams groups number them."""
_NUMBERS: Final = {state: number for number, state in _STATES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    """What a member has told, and where it is on its way to its target."""

    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: TasksWithEpochs = field(default_factory=lambda: NO_OWNED_TASKS)
    revoking: TasksWithEpochs = field(default_factory=lambda: NO_OWNED_TASKS)
    """What the member was told to give up and has not given up yet."""

    def has_reached(self, target_epoch: int) -> bool:
        """Whether the member has its whole target of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def with_epoch(
        self,
        epoch: int,
        state: MemberState,
        assigned: TasksWithEpochs,
        revoking: TasksWithEpochs = NO_OWNED_TASKS,
    ) -> StreamsMember:
        previous = self.epoch
        return replace(
            self, previous_epoch=previous, epoch=epoch, state=state, assigned=assigned, revoking=revoking
        )

    # Records.

    def metadata_record(self, group_id: str) -> Record:
        return Record(
            stored.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            stored.StreamsGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack,
                client_id=self.client_id,
                client_host=self.client_host,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                topology_epoch=self.topology_epoch,
                process_id=self.process_id,
                user_endpoint=None
                if self.endpoint is None
                else stored.Endpoint(host=self.endpoint.host, port=self.endpoint.port),
                client_tags=[
                    stored.KeyValue(key=key, value=self.client_tags[key]) for key in sorted(self.client_tags)
                ],
            ),
        )

    def assignment_record(self, group_id: str) -> Record:
        key = stored.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        return Record(key, self.assignment_value())

    def assignment_value(self) -> StoredAssignment:
        return StoredAssignment(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=_NUMBERS[self.state],
            active_tasks=_stored(self.assigned, Role.ACTIVE),
            standby_tasks=_stored(self.assigned, Role.STANDBY),
            warmup_tasks=_stored(self.assigned, Role.WARMUP),
            active_tasks_pending_revocation=_stored(self.revoking, Role.ACTIVE),
            standby_tasks_pending_revocation=_stored(self.revoking, Role.STANDBY),
            warmup_tasks_pending_revocation=_stored(self.revoking, Role.WARMUP),
        )

    def with_metadata(self, value: stored.StreamsGroupMemberMetadataValue) -> StreamsMember:
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
            client_tags={tag.key: tag.value for tag in value.client_tags},
        )

    def with_assignment(self, value: StoredAssignment | None) -> StreamsMember:
        if value is None:
            value = StreamsMember(member_id=self.member_id).assignment_value()
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_owned(value.member_epoch, value.active_tasks, value.standby_tasks, value.warmup_tasks),
            revoking=_owned(
                value.member_epoch,
                value.active_tasks_pending_revocation,
                value.standby_tasks_pending_revocation,
                value.warmup_tasks_pending_revocation,
            ),
        )


def _stored(tasks: TasksWithEpochs, role: Role) -> list[StoredTasks]:
    return [
        StoredTasks(
            subtopology_id=subtopology,
            partitions=numbers,
            assignment_epochs=[tasks[role, subtopology][number] for number in numbers]
            if role is Role.ACTIVE
            else None,
        )
        for subtopology, numbers in of_role(tasks, role)
    ]


def _owned(member_epoch: int, *by_role: list[StoredTasks]) -> TasksWithEpochs:
    """The tasks of a record. Those without epochs get the member's own, which is the safe answer."""
    owned: dict[TaskPlace, Mapping[int, int]] = {}
    for role, tasks in zip(Role, by_role, strict=True):
        for each in tasks:
            epochs = each.assignment_epochs
            owned[role, each.subtopology_id] = (
                dict.fromkeys(each.partitions, member_epoch)
                if epochs is None
                else dict(zip(each.partitions, epochs, strict=False))
            )
    return owned
