"""What a broker tells about groups: state, members, committed offsets and how far they are behind."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import click
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, OffsetSpec

from millrace.cli import clients
from millrace.cli.group import share_groups
from millrace.cli.group.share_groups import ShareGroup
from millrace.cli.options import BrokerAddress

Partition = tuple[str, int]

# Kafka's own spelling, which its tools print; librdkafka has names of its own.
_STATES: Final = {
    ConsumerGroupState.UNKNOWN: "Unknown",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
_NO_OFFSET: Final = 0
# The first question about groups makes the broker create its topic for them, and load it.
_COORDINATOR_IS_STARTING: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One line of `millrace group list`."""

    group: str
    state: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """One member with its partitions, and when it was last heard of, where a broker told."""

    member: str
    client: str
    host: str
    instance: str | None
    partitions: tuple[Partition, ...]
    heartbeat_ms: int | None = None
    fetch_ms: int | None = None
    commit_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Where a group is in one partition, and where the partition ends. A share group has committed all that
    is before its start."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    metadata: str = ""
    lag_ms: int | None = None
    told_lag: int | None = None
    """What the broker says of a share group, which is done with some messages before others."""

    @property
    def lag(self) -> int | None:
        if self.told_lag is not None:
            return self.told_lag
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """All that `millrace group describe` shows."""

    group: str
    state: str
    type: str
    assignor: str
    coordinator_id: int | None
    coordinator: str
    coordinator_host: str
    members: tuple[MemberState, ...] = ()
    partitions: tuple[PartitionState, ...] = field(default=())


def state_named(name: str) -> str:
    """Kafka's spelling of a state that somebody typed."""
    plain = name.replace("-", "").replace("_", "").lower()
    known = [*_STATES.values(), "Assigning", "Reconciling", "NotReady"]
    for state in known:
        if state.lower() == plain:
            return state
    raise click.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="'--state'")


def list_groups(admin: AdminClient, broker: BrokerAddress) -> list[GroupListing]:
    future = admin.list_consumer_groups(request_timeout=broker.timeout_s)
    result = clients.answer_of(future, broker, subject="groups")
    if result.errors:
        raise clients.RequestFailed(f"groups: {clients.describe_error(result.errors[0])}")
    found = [
        GroupListing(group=each.group_id, state=_state_text(each.state), type=_type_text(each.type))
        for each in result.valid
    ]
    return sorted(found, key=lambda each: each.group)


def describe_group(admin: AdminClient, broker: BrokerAddress, name: str) -> GroupState:
    try:
        description = _description(admin, broker, name)
    except UnknownGroup:
        share = share_groups.find(broker, name)
        if share is None:
            raise
        return _described_share(admin, broker, name, share)
    offsets = committed_offsets(admin, broker, name)
    members = tuple(sorted((_member(each) for each in description.members), key=lambda each: each.client))
    partitions = {**dict.fromkeys(offsets), **dict.fromkeys(p for each in members for p in each.partitions)}
    ends = log_offsets(admin, broker, partitions, OffsetSpec.latest())
    coordinator = description.coordinator
    return GroupState(
        group=name,
        state=_state_text(description.state),
        type=_type_text(description.type),
        assignor=description.partition_assignor or "",
        coordinator_id=None if coordinator is None else coordinator.id,
        coordinator="-"
        if coordinator is None
        else f"{coordinator.host}:{coordinator.port} (broker {coordinator.id})",
        coordinator_host="" if coordinator is None else coordinator.host,
        members=members,
        partitions=tuple(
            PartitionState(
                topic=topic,
                partition=number,
                committed=offsets[topic, number][0] if (topic, number) in offsets else None,
                metadata=offsets[topic, number][1] if (topic, number) in offsets else "",
                end=ends.get((topic, number)),
            )
            for topic, number in sorted(partitions)
        ),
    )


def _described_share(admin: AdminClient, broker: BrokerAddress, name: str, share: ShareGroup) -> GroupState:
    progress = share_groups.progress(broker, name)
    ends = log_offsets(admin, broker, progress, OffsetSpec.latest())
    host, port = share.coordinator
    return GroupState(
        group=name,
        state=share.state,
        type=share_groups.SHARE,
        assignor=share.assignor,
        coordinator_id=share.coordinator_id,
        coordinator=f"{host}:{port} (broker {share.coordinator_id})",
        coordinator_host=host,
        members=tuple(sorted((_share_member(each) for each in share.members), key=lambda each: each.client)),
        partitions=tuple(
            PartitionState(
                topic=topic,
                partition=number,
                committed=found.start,
                end=ends.get((topic, number)),
                told_lag=found.lag,
            )
            for (topic, number), found in sorted(progress.items())
        ),
    )


def _share_member(found: Any) -> MemberState:
    return MemberState(
        member=found.member_id,
        client=found.client_id,
        host=found.client_host.lstrip("/"),
        instance=None,
        partitions=tuple(
            sorted(
                (topic.topic_name, number)
                for topic in found.assignment.topic_partitions
                for number in topic.partitions
            )
        ),
    )


class Users(NamedTuple):
    """Who would be disturbed by a change of the group."""

    members: int
    is_share: bool = False


def users_of(admin: AdminClient, broker: BrokerAddress, name: str) -> Users:
    """How many members the group has, 0 for one that is not there, and whether it is a share group."""
    try:
        return Users(len(_description(admin, broker, name).members))
    except UnknownGroup:
        share = share_groups.find(broker, name)
        return Users(0) if share is None else Users(len(share.members), is_share=True)


class UnknownGroup(clients.RequestFailed):
    """Neither members nor offsets are known under this name."""


def committed_offsets(
    admin: AdminClient, broker: BrokerAddress, name: str
) -> dict[Partition, tuple[int, str]]:
    """Offset and metadata of every partition that the group has committed."""
    wanted = ConsumerGroupTopicPartitions(name)
    future = admin.list_consumer_group_offsets([wanted], request_timeout=broker.timeout_s)[name]
    found = clients.answer_of(future, broker, subject=name)
    return {
        (str(each.topic), int(each.partition)): (int(each.offset), each.metadata or "")
        for each in found.topic_partitions or ()
        if each.offset >= _NO_OFFSET
    }


def start_offsets(broker: BrokerAddress, name: str) -> dict[Partition, int | None]:
    """Where a share group begins in each of its partitions; None where the first fetch will say."""
    return {partition: found.start for partition, found in share_groups.progress(broker, name).items()}


def log_offsets(
    admin: AdminClient, broker: BrokerAddress, partitions: Iterable[Partition], spec: OffsetSpec
) -> dict[Partition, int]:
    """One offset of each partition's log; partitions that no longer exist are left out."""
    wanted = {TopicPartition(*partition): spec for partition in partitions}
    if not wanted:
        return {}
    found: dict[Partition, int] = {}
    for each, future in admin.list_offsets(wanted, request_timeout=broker.timeout_s).items():
        try:
            answer = clients.answer_of(future, broker, subject=f"{each.topic}:{each.partition}")
        except clients.RequestFailed as error:
            if clients.error_code(error) not in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_TOPIC,
                KafkaError._UNKNOWN_PARTITION,
            ):
                raise
        else:
            found[str(each.topic), int(each.partition)] = int(answer.offset)
    return found


def as_document(state: GroupState) -> dict[str, Any]:
    """The description as `--json` prints it."""
    return {
        "group": state.group,
        "state": state.state,
        "type": state.type,
        "assignor": state.assignor,
        "coordinator": state.coordinator_id,
        "lag": sum(each.lag for each in state.partitions if each.lag is not None),
        "members": [
            {
                "member": each.member,
                "client": each.client,
                "host": each.host,
                "instance": each.instance,
                "partitions": [{"topic": topic, "partition": number} for topic, number in each.partitions],
                "last_heartbeat_ms": each.heartbeat_ms,
                "last_fetch_ms": each.fetch_ms,
                "last_commit_ms": each.commit_ms,
            }
            for each in state.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "start_offset" if state.type == share_groups.SHARE else "committed_offset": each.committed,
                "metadata": each.metadata,
                "end_offset": each.end,
                "lag": each.lag,
                "lag_ms": each.lag_ms,
            }
            for each in state.partitions
        ],
    }


def _description(admin: AdminClient, broker: BrokerAddress, name: str) -> ConsumerGroupDescription:
    deadline = time.monotonic() + broker.timeout_s
    while True:
        future = admin.describe_consumer_groups([name], request_timeout=broker.timeout_s)[name]
        try:
            return _known(name, clients.answer_of(future, broker, subject=name))
        except clients.RequestFailed as error:
            code = clients.error_code(error)
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                raise UnknownGroup(f"no such group: {name}") from error
            if code not in _COORDINATOR_IS_STARTING or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _known(name: str, description: ConsumerGroupDescription) -> ConsumerGroupDescription:
    # Brokers before Kafka 4.0 answer so for a group that they have never heard of.
    if description.state is ConsumerGroupState.DEAD and not description.members:
        raise UnknownGroup(f"no such group: {name}")
    return description


def _member(found: Any) -> MemberState:
    assignment = found.assignment.topic_partitions if found.assignment is not None else ()
    return MemberState(
        member=found.member_id,
        client=found.client_id,
        host=found.host.lstrip("/"),
        instance=found.group_instance_id,
        partitions=tuple(sorted((each.topic, each.partition) for each in assignment or ())),
    )


def _state_text(state: Any) -> str:
    return _STATES.get(state) or str(state.name).title().replace("_", "")


def _type_text(kind: Any) -> str:
    return str(kind.name).lower()
