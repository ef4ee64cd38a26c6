"""The rules of partitions in a cluster, on a whole image: what must change when brokers come and go, and what
single requests may change. No I/O, no time, no chance.

Every change of a partition compares its revision, so that two who decide at the same time cannot both win.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from millrace.core.ids import NodeId, TopicId
from millrace.metadata import election, records
from millrace.metadata.commands import AlterIsr, Change, ElectionKind, ElectLeader, Policy, Reassign
from millrace.metadata.config_definitions import topic_value
from millrace.metadata.election import ElectionRules, Standing, standing_of
from millrace.metadata.errors import (
    ElectionNotNeeded,
    IneligibleReplica,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoEligibleLeader,
    NoReassignment,
    PreferredLeaderUnavailable,
    StaleState,
    UnknownPartition,
    UnknownTopicId,
)
from millrace.metadata.image import NO_LEADER, Image, PartitionState, TopicState
from millrace.metadata.store import ABSENT, Compare, Put

Replica = tuple[TopicId, int]
"""A partition, by the topic's id, of which a broker has a replica."""


_MOD_REVISION: Final = PartitionState._fields.index("mod_revision")


class PartitionUpdate(NamedTuple):
    """A change of one partition, to be written if nobody else has changed it."""

    topic: TopicState
    partition: int
    before: PartitionState
    after: PartitionState
    """The state to write; its revision has no meaning."""

    def compares(self) -> list[Compare]:
        compares = [Compare(self._key(), self.before.mod_revision)]
        if self.after.eligible:
            # Who is eligible depends on min.insync.replicas, which must not change meanwhile.
            compares.append(Compare(records.topic_key(self.topic.name), self.topic.mod_revision))
        return compares

    def put(self) -> Put:
        return Put(self._key(), records.encode_partition(self.after))

    def _key(self) -> str:
        return records.partition_key(self.topic.topic_id, self.partition)


class Rulebook:
    """The rules of each topic's elections, looked up once for all topics that set nothing themselves."""

    def __init__(self, image: Image, policy: Policy) -> None:
        self._policy = policy
        self._default = self._resolve({})
        self._defaults_revision = image.config_revisions.get(records.DEFAULT_BROKER_CONFIG_KEY, 0)

    def of(self, topic: TopicState) -> ElectionRules:
        return self._resolve(topic.configs) if topic.configs else self._default

    def current(self, topic: TopicState, state: PartitionState) -> PartitionState:
        """The state, without eligible replicas that were named under other settings: with a smaller
        min.insync.replicas the high watermark may have gone on without them."""
        if state.eligible and state.mod_revision < max(topic.mod_revision, self._defaults_revision):
            return state._replace(eligible=())
        return state

    def _resolve(self, configs: Mapping[str, str]) -> ElectionRules:
        min_isr = topic_value("min.insync.replicas", configs, self._policy.layers)
        unclean = topic_value("unclean.leader.election.enable", configs, self._policy.layers)
        assert isinstance(min_isr, int), min_isr
        return ElectionRules(min_isr, unclean is True)


# When brokers come and go.


def assign_leaders(image: Image, topics: Iterable[TopicState], policy: Policy) -> list[PartitionUpdate]:
    """What has to change so that brokers that are there lead and keep these topics."""
    rulebook = Rulebook(image, policy)
    standing = standing_of(image)
    # Each election is held once for all partitions in the same state: where a broker led thousands of
    # partitions, most are in one of a few states.
    decided: dict[tuple[object, ...], PartitionState | None] = {}
    updates = []
    for topic in topics:
        rules = rulebook.of(topic)
        for number, state in enumerate(topic.partitions):
            offline = image.offline_at(topic.topic_id, number) if image.offline else None
            if not offline:
                if election.is_up_to_date(state, standing):
                    continue
                current = rulebook.current(topic, state)
                key = (*current[:_MOD_REVISION], *current[_MOD_REVISION + 1 :], rules)
                if key not in decided:
                    after = election.elect(current, standing, rules)
                    decided[key] = None if after is current else after
                after = decided[key] or current
            else:
                current = rulebook.current(topic, state)
                after = election.elect_without(current, offline, standing, rules)
            if after is not current:
                updates.append(PartitionUpdate(topic, number, state, after))
    return updates


def withdraw_replicas(
    image: Image,
    node_id: NodeId,
    policy: Policy,
    *,
    is_trusted: bool,
    is_empty: bool,
    unreachable: Collection[Replica] = (),
    lost: Collection[Replica] = (),
) -> list[PartitionUpdate]:
    """What a starting broker has to change before it registers: it leads nothing from before, and where it
    may have lost records it is not in sync either. Unreachable logs may come back; lost logs begin empty."""
    rulebook = Rulebook(image, policy)
    standing = standing_of(image, without=node_id)
    updates = []
    for topic in image.topics.values():
        rules = rulebook.of(topic)
        for number, state in enumerate(topic.partitions):
            if node_id not in state.isr and node_id not in state.eligible and state.last_leader != node_id:
                continue
            current = rulebook.current(topic, state)
            replica = (topic.topic_id, number)
            if is_trusted and replica not in unreachable and replica not in lost:
                after = election.elect(current, standing, rules)
            else:
                after = election.withdraw(
                    current, node_id, standing, rules, is_empty=is_empty or replica in lost
                )
            if after is not current:
                updates.append(PartitionUpdate(topic, number, state, after))
    return updates


def restore_preferred_leaders(image: Image, *, imbalance_percent: int) -> list[PartitionUpdate]:
    """Give leadership back to first replicas, for brokers that lead too few of those meant for them."""
    standing = standing_of(image)
    meant: dict[NodeId, int] = {}
    led_elsewhere: dict[NodeId, list[PartitionUpdate]] = {}
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            preferred = state.replicas[0]
            meant[preferred] = meant.get(preferred, 0) + 1
            if state.leader == preferred:
                continue
            after = election.prefer(state, _standing_at(image, standing, topic, number))
            if after is not None:
                update = PartitionUpdate(topic, number, state, after)
                led_elsewhere.setdefault(preferred, []).append(update)
    return [
        update
        for node_id, updates in led_elsewhere.items()
        if 100 * len(updates) > imbalance_percent * meant[node_id]
        for update in updates
    ]


# Single requests.


def decide_alter_isr(image: Image, command: AlterIsr, policy: Policy) -> Change:
    topic = image.topics_by_id.get(command.topic_id)
    if topic is None:
        raise UnknownTopicId(command.topic_id)
    if not 0 <= command.partition < len(topic.partitions):
        raise UnknownPartition(topic.name, command.partition)
    state = topic.partitions[command.partition]
    name = f"{topic.name}-{command.partition}"
    if (command.leader_id, command.leader_epoch) != (state.leader, state.leader_epoch):
        raise StaleState(
            f"{name}: broker {command.leader_id} leads in epoch {command.leader_epoch} no longer, "
            f"broker {state.leader} does in epoch {state.leader_epoch}"
        )
    if command.partition_epoch != state.partition_epoch:
        raise StaleState(
            f"{name}: the state has partition epoch {state.partition_epoch}, not {command.partition_epoch}"
        )
    leader = image.brokers.get(command.leader_id)
    if leader is None:
        raise StaleState(f"{name}: broker {command.leader_id} is not registered any more")
    standing = _standing_at(image, standing_of(image), topic, command.partition)
    rulebook = Rulebook(image, policy)
    # A leader that is out of the cluster must not change anything, even before others have noticed.
    compares = [Compare(records.broker_key(leader.node_id), leader.epoch)]
    compares += _check_isr(image, state, command, standing, name)
    current = rulebook.current(topic, state)
    after = election.alter_isr(current, command.isr, standing, rulebook.of(topic))
    if after is current:
        return Change()
    update = PartitionUpdate(topic, command.partition, state, after)
    return Change(compares=(*update.compares(), *compares), puts=(update.put(),))


def _check_isr(
    image: Image, state: PartitionState, command: AlterIsr, standing: Standing, name: str
) -> list[Compare]:
    """What has to hold for the brokers that join the ISR, also at the moment of the commit."""
    if command.leader_id not in command.isr or len(set(command.isr)) != len(command.isr):
        raise IneligibleReplica(f"{name}: {list(command.isr)} lacks the leader or names a broker twice")
    compares = []
    for node_id in command.isr:
        if node_id not in state.replicas:
            raise IneligibleReplica(f"{name}: broker {node_id} has no replica")
        if node_id in state.isr:
            continue
        if node_id not in standing.willing:
            raise IneligibleReplica(
                f"{name}: broker {node_id} is not there, about to stop, or its disk has failed"
            )
        epoch = image.brokers[node_id].epoch
        if command.broker_epochs.get(node_id, epoch) != epoch:
            raise IneligibleReplica(f"{name}: broker {node_id} has started again since it was found in sync")
        compares.append(Compare(records.broker_key(node_id), epoch))
        compares.append(Compare(records.stopping_key(node_id), ABSENT))
        offline = image.offline.get(node_id)
        revision = ABSENT if offline is None else offline.mod_revision
        compares.append(Compare(records.offline_key(node_id), revision))
    return compares


def decide_election(image: Image, command: ElectLeader, policy: Policy) -> Change:
    topic, state = _find(image, command.topic, command.partition)
    name = f"{command.topic}-{command.partition}"
    standing = _standing_at(image, standing_of(image), topic, command.partition)
    after: PartitionState | None
    if command.kind is ElectionKind.PREFERRED:
        if state.leader == state.replicas[0]:
            raise ElectionNotNeeded(f"{name} is led by its preferred leader, broker {state.leader}")
        after = election.prefer(state, standing)
        if after is None:
            raise PreferredLeaderUnavailable(
                f"{name}: broker {state.replicas[0]}, the preferred leader, is not in sync or not there"
            )
    else:
        if state.leader != NO_LEADER and state.leader in standing.live:
            raise ElectionNotNeeded(f"{name} is led by broker {state.leader}")
        rulebook = Rulebook(image, policy)
        after = election.elect_any(rulebook.current(topic, state), standing, rulebook.of(topic))
        if after is None:
            raise NoEligibleLeader(f"{name}: none of its replicas {list(state.replicas)} is there")
    return _change(PartitionUpdate(topic, command.partition, state, after))


def decide_reassignment(image: Image, command: Reassign, policy: Policy) -> Change:
    topic, state = _find(image, command.topic, command.partition)
    rulebook = Rulebook(image, policy)
    rules = rulebook.of(topic)
    standing = _standing_at(image, standing_of(image), topic, command.partition)
    current = rulebook.current(topic, state)
    if command.replicas is None:
        after = _cancelled(current, command, standing, rules)
    else:
        target = _checked_target(image, command, state)
        after = election.reassign(current, target, standing, rules)
    if after is current:
        return Change()
    return _change(PartitionUpdate(topic, command.partition, state, after))


def _cancelled(
    state: PartitionState, command: Reassign, standing: Standing, rules: ElectionRules
) -> PartitionState:
    name = f"{command.topic}-{command.partition}"
    if not state.adding and not state.removing:
        raise NoReassignment(f"{name} does not move")
    after = election.cancel_reassignment(state, standing, rules)
    if after is None:
        raise InvalidReplicaAssignment(
            f"{name}: the move cannot be cancelled, because none of the replicas from before is in sync"
        )
    return after


def _checked_target(image: Image, command: Reassign, state: PartitionState) -> tuple[NodeId, ...]:
    assert command.replicas is not None
    name = f"{command.topic}-{command.partition}"
    target = tuple(NodeId(node_id) for node_id in command.replicas)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"{name}: {list(target)} is empty or names a broker twice")
    unknown = [
        node_id for node_id in target if node_id not in image.brokers and node_id not in state.replicas
    ]
    if unknown:
        raise InvalidReplicaAssignment(
            f"{name}: brokers {unknown} are not there; running: {list(image.brokers)}"
        )
    factor = len(state.replicas) - len(state.adding)
    if not command.is_factor_change_allowed and len(target) != factor:
        raise InvalidReplicationFactor(
            f"{name} has {factor} replicas, {list(target)} are not as many, and the request forbids a change"
        )
    return target


def _standing_at(image: Image, standing: Standing, topic: TopicState, partition: int) -> Standing:
    """The brokers as far as this partition goes: one whose disk has failed is as good as gone."""
    return election.reduced(standing, image.offline_at(topic.topic_id, partition))


def _find(image: Image, topic_name: str, partition: int) -> tuple[TopicState, PartitionState]:
    topic = image.topics.get(topic_name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        raise UnknownPartition(topic_name, partition)
    return topic, topic.partitions[partition]


def _change(update: PartitionUpdate) -> Change:
    return Change(compares=tuple(update.compares()), puts=(update.put(),))
