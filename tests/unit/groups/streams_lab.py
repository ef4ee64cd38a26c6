"""One partition's streams groups without a broker, and clients as the protocol wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.core.errors import MillraceError
from millrace.core.override import override
from millrace.groups.consumer.rules import GroupsOfConsumers
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.machine import GroupMachine
from millrace.groups.streams.commands import StreamsBeat, StreamsHeartbeat, StreamsSettings
from millrace.groups.streams.group import StreamsGroup
from millrace.groups.streams.rules import GroupsOfStreams
from millrace.groups.streams.tasks import Role, TaskPlace
from millrace.wire.messages.streams_group_records import StreamsGroupTopologyValue
from tests.unit.groups.consumer_lab import GROUP, Lab


class StreamsLab(Lab):
    """A lab whose groups are those of the streams protocol."""

    def __init__(self, settings: StreamsSettings | None = None) -> None:
        self.streams_settings = settings or StreamsSettings(
            assignment_interval_ms=0, initial_rebalance_delay_ms=0
        )
        super().__init__()

    @override
    def new_machine(self) -> GroupMachine:
        topics = ConsumerTopics(lambda: self.image)
        return GroupMachine(
            self.classic_settings,
            lambda shard: GroupsOfConsumers(shard, topics, lambda: self.settings, lambda _: {}),
            [lambda shard: GroupsOfStreams(shard, topics, lambda _: self.streams_settings)],
        )

    @property
    def streams_group(self) -> StreamsGroup:
        group = self.machine.groups[GROUP]
        assert isinstance(group, StreamsGroup), group
        return group

    def beaten(self, beat: StreamsHeartbeat) -> StreamsBeat:
        answer = self.submit(beat)
        assert isinstance(answer, StreamsBeat), answer
        return answer


class StreamsClient:
    """A thread of Kafka Streams: it works on what it was told to, and says what it owns."""

    def __init__(
        self, member_id: str, topology: StreamsGroupTopologyValue, *, process_id: str | None = None
    ) -> None:
        self.member_id = member_id
        self.topology = topology
        self.process_id = process_id or f"process of {member_id}"
        self.epoch = 0
        self.tasks: Mapping[TaskPlace, Sequence[int]] = {}
        self.statuses: list[int] = []

    def beat(self) -> StreamsHeartbeat:
        is_joining = self.epoch == 0
        active, standby, warmup = (
            [(name, list(numbers)) for (role, name), numbers in self.tasks.items() if role is each]
            for each in Role
        )
        return StreamsHeartbeat(
            GROUP,
            self.member_id,
            self.epoch,
            rebalance_timeout_ms=10_000 if is_joining else -1,
            topology=self.topology if is_joining else None,
            active=active,
            standby=standby,
            warmup=warmup,
            process_id=self.process_id if is_joining else None,
            client_tags={"zone": "z"} if is_joining else None,
            client_id="client",
            client_host="/host",
        )

    def take(self, answer: object) -> None:
        if isinstance(answer, MillraceError):
            # Fenced or forgotten: it gives up all tasks and begins anew.
            self.epoch, self.tasks, self.statuses = 0, {}, []
            return
        assert isinstance(answer, StreamsBeat), answer
        self.epoch = answer.member_epoch
        self.statuses = [status.code.value for status in answer.statuses]
        if answer.tasks is not None:
            self.tasks = {place: sorted(numbers) for place, numbers in answer.tasks.items()}

    def of_role(self, role: Role) -> list[tuple[str, int]]:
        return sorted(
            (name, number)
            for (found, name), numbers in self.tasks.items()
            if found is role
            for number in numbers
        )

    @property
    def active(self) -> list[tuple[str, int]]:
        return self.of_role(Role.ACTIVE)


def settled(lab: StreamsLab, *clients: StreamsClient) -> None:
    """Let all clients send heartbeats until nothing moves any more."""
    for _ in range(10):
        for client in clients:
            client.take(lab.submit(client.beat()))


def stored_state(group: StreamsGroup) -> dict[str, object]:
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "validated": group.validated_topology_epoch,
        "configs": group.assignment_configs,
        "assignment": (group.assignment_epoch, group.assigned_at_ms),
        "topology": group.topology,
        "members": group.members,
        "target": group.target,
        "holders": group.holders,
    }
