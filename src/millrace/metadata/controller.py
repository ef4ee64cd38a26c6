"""The rules of the cluster's metadata: a command and an image in, the change to write out. No I/O, no time,
no chance.

Every change compares the revisions of what the decision rests on; whoever commits it decides again on a
conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from millrace.core.ids import NO_EPOCH, Epoch, NodeId, TopicId
from millrace.core.limits import PARTITIONS_PER_TOPIC_MAX
from millrace.metadata import records
from millrace.metadata.alterations import altered_configs, replaced_configs
from millrace.metadata.commands import (
    AdoptTopic,
    AllocateProducerIds,
    AlterConfigs,
    AlterIsr,
    BeginStop,
    BrokerResource,
    Change,
    ClaimController,
    Command,
    ConfigResource,
    ConfirmDeletion,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeader,
    EndFilling,
    GroupResource,
    Policy,
    RaiseLeaderEpochs,
    Reassign,
    RegisterBroker,
    RemoveMember,
    ReplaceConfigs,
    ReportOffline,
    SetClusterId,
    SkipProducerIds,
    TopicResource,
    UnregisterBroker,
)
from millrace.metadata.config_definitions import check_topic_configs
from millrace.metadata.errors import (
    BrokerAlive,
    ContradictoryRequest,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopicName,
    NodeIdInUse,
    NotAMember,
    TopicDeletionDisabled,
    TopicExists,
    UnknownBroker,
    UnknownTopic,
    UnknownTopicId,
)
from millrace.metadata.image import BrokerState, Image, PartitionState, TopicState, collision_name
from millrace.metadata.leadership import decide_alter_isr, decide_election, decide_reassignment
from millrace.metadata.placement import place_replicas
from millrace.metadata.security.rules import decide_security
from millrace.metadata.store import ABSENT, ChangeBatch, Compare, KeyChange, Put
from millrace.metadata.tenant_partitions import check_tenant_partitions
from millrace.metadata.topic_names import check_topic_name

_DEFAULT: Final = -1


def decide(image: Image, command: Command, policy: Policy) -> Change:
    """What has to be written for the command, or an error of metadata.errors. Changes nothing."""
    match command:
        case CreateTopic():
            return _create_topic(image, command, policy)
        case DeleteTopic():
            return _delete_topic(image, command, policy)
        case CreatePartitions():
            return _create_partitions(image, command)
        case AlterConfigs(resource, alterations):
            return _write_configs(
                image, resource, altered_configs(image, resource, alterations, policy.layers)
            )
        case ReplaceConfigs(resource, configs):
            return _write_configs(image, resource, replaced_configs(image, resource, configs, policy.layers))
        case AllocateProducerIds(count):
            return _set_next_producer_id(image, image.next_producer_id + count)
        case SkipProducerIds(below):
            return Change() if below <= image.next_producer_id else _set_next_producer_id(image, below)
        case RegisterBroker():
            return _register_broker(image, command, policy)
        case ReportOffline():
            return _report_offline(image, command)
        case UnregisterBroker():
            return _unregister_broker(image, command)
        case SetClusterId(cluster_id):
            if image.cluster_id:
                return Change()
            put = Put(records.CLUSTER_KEY, records.encode_cluster(cluster_id))
            return Change(compares=(Compare(records.CLUSTER_KEY, ABSENT),), puts=(put,))
        case AdoptTopic():
            return _adopt_topic(image, command)
        case RaiseLeaderEpochs():
            return _raise_leader_epochs(image, command)
        case ConfirmDeletion():
            return _confirm_deletion(image, command)
        case AlterIsr():
            return decide_alter_isr(image, command, policy)
        case ElectLeader():
            return decide_election(image, command, policy)
        case Reassign():
            return decide_reassignment(image, command, policy)
        case ClaimController():
            return _claim_controller(image, command)
        case BeginStop():
            return _begin_stop(image, command)
        case EndFilling():
            return _end_filling(image, command)
        case RemoveMember():
            return _remove_member(image, command)
        case _:
            return decide_security(image.security, command)


def as_batch(image: Image, change: Change) -> ChangeBatch:
    """The change as the store would report it: folded into the image, it shows the outcome beforehand."""
    revision = image.revision + 1
    puts = (KeyChange(put.key, put.value, revision) for put in (*change.early_puts, *change.puts))
    deletes = (KeyChange(key, None, revision) for key in (*change.deletes, *change.late_deletes))
    return ChangeBatch(revision, (*puts, *deletes))


# Topics.


def _create_topic(image: Image, command: CreateTopic, policy: Policy) -> Change:
    name = command.name
    check_topic_name(name)
    _check_absent(image, name, command.topic_id)
    other = image.topic_names.get(collision_name(name))
    if other is not None:
        raise InvalidTopicName(name, f"it differs from the topic {other!r} only in '.' and '_'")
    check_topic_configs(command.configs)
    replicas = _placement_of_topic(image, command, policy)
    check_tenant_partitions(image, name, len(replicas))
    partitions = _new_partitions(command.topic_id, 0, replicas)
    record = records.encode_topic(command.topic_id, len(replicas), command.configs)
    compares = [Compare(records.topic_key(name), ABSENT)]
    puts = [Put(records.topic_key(name), record)]
    if (guard := records.name_guard_key(name)) is not None:
        compares.append(Compare(guard, ABSENT))
        puts.append(Put(guard, name.encode()))
    return Change(compares=tuple(compares), puts=tuple(puts), early_puts=partitions)


def _placement_of_topic(image: Image, command: CreateTopic, policy: Policy) -> Sequence[tuple[NodeId, ...]]:
    if command.assignments is not None:
        if command.partition_count != _DEFAULT or command.replication_factor != _DEFAULT:
            raise ContradictoryRequest(
                f"topic {command.name!r}: with replicas placed by hand, the number of partitions and the "
                f"replication factor must be left out (-1)"
            )
        if sorted(command.assignments) != list(range(len(command.assignments))):
            raise InvalidReplicaAssignment(
                f"topic {command.name!r}: partitions must be numbered from 0 without gaps, "
                f"not {sorted(command.assignments)}"
            )
        by_number = [command.assignments[number] for number in range(len(command.assignments))]
        _check_partition_count(command.name, len(by_number))
        return _checked_assignments(image, command.name, by_number, None)
    count = policy.num_partitions if command.partition_count == _DEFAULT else command.partition_count
    factor = command.replication_factor
    if factor == _DEFAULT:
        factor = policy.default_replication_factor
    _check_partition_count(command.name, count)
    if factor < 1:
        raise InvalidReplicationFactor(f"topic {command.name!r}: replication factor {factor} is less than 1")
    return place_replicas(
        _racks(image),
        partition_count=count,
        replication_factor=factor,
        start=_placement_start(command.topic_id),
    )


def _delete_topic(image: Image, command: DeleteTopic, policy: Policy) -> Change:
    topic = _find(image, command)
    if not policy.is_topic_deletion_enabled:
        raise TopicDeletionDisabled(topic.name)
    brokers: dict[NodeId, None] = {}
    for partition in topic.partitions:
        brokers.update(dict.fromkeys(partition.replicas))
    key = records.topic_key(topic.name)
    deletes = [key]
    if (guard := records.name_guard_key(topic.name)) is not None:
        deletes.append(guard)
    # This record proves to all brokers, also to those that are down now, that these logs are to go.
    proof = Put(
        records.deleted_topic_key(topic.topic_id), records.encode_deleted_topic(topic.name, sorted(brokers))
    )
    return Change(
        compares=(Compare(key, topic.mod_revision),),
        puts=(proof,),
        deletes=tuple(deletes),
        late_deletes=tuple(
            records.partition_key(topic.topic_id, number) for number in range(len(topic.partitions))
        ),
    )


def _create_partitions(image: Image, command: CreatePartitions) -> Change:
    topic = image.topics.get(command.name)
    if topic is None:
        raise UnknownTopic(command.name)
    present = len(topic.partitions)
    if command.count <= present:
        raise InvalidPartitions(
            f"topic {command.name!r} has {present} partitions already; {command.count} would not be more, "
            f"and partitions cannot be taken away"
        )
    _check_partition_count(command.name, command.count)
    added = command.count - present
    check_tenant_partitions(image, command.name, added)
    factor = len(topic.partitions[0].replicas)
    if command.assignments is not None:
        if len(command.assignments) != added:
            raise InvalidReplicaAssignment(
                f"topic {command.name!r}: {added} partitions are added, but replicas are given for "
                f"{len(command.assignments)}"
            )
        replicas: Sequence[tuple[NodeId, ...]] = _checked_assignments(
            image, command.name, command.assignments, factor
        )
    else:
        replicas = place_replicas(
            _racks(image),
            partition_count=added,
            replication_factor=factor,
            start=_placement_start(topic.topic_id),
            first_partition=present,
        )
    key = records.topic_key(topic.name)
    return Change(
        compares=(Compare(key, topic.mod_revision),),
        puts=(Put(key, records.encode_topic(topic.topic_id, command.count, topic.configs)),),
        early_puts=_new_partitions(topic.topic_id, present, replicas),
    )


def _find(image: Image, command: DeleteTopic) -> TopicState:
    if command.topic_id is not None:
        topic = image.topics_by_id.get(command.topic_id)
        if topic is None:
            raise UnknownTopicId(command.topic_id)
        return topic
    assert command.name is not None, command
    topic = image.topics.get(command.name)
    if topic is None:
        raise UnknownTopic(command.name)
    return topic


def _check_absent(image: Image, name: str, topic_id: TopicId) -> None:
    if name in image.topics or topic_id in image.topics_by_id:
        raise TopicExists(name)


def _check_partition_count(name: str, count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(
            f"topic {name!r}: {count} partitions; 1 to {PARTITIONS_PER_TOPIC_MAX} are allowed"
        )


def _checked_assignments(
    image: Image, name: str, assignments: Iterable[Sequence[int]], factor: int | None
) -> list[tuple[NodeId, ...]]:
    checked = []
    for assignment in assignments:
        nodes = tuple(NodeId(node_id) for node_id in assignment)
        if not nodes or len(set(nodes)) != len(nodes):
            raise InvalidReplicaAssignment(f"topic {name!r}: {list(nodes)} is empty or names a broker twice")
        unknown = [node_id for node_id in nodes if node_id not in image.brokers]
        if unknown:
            raise InvalidReplicaAssignment(f"topic {name!r}: there are no brokers {unknown}")
        factor = len(nodes) if factor is None else factor
        if len(nodes) != factor:
            raise InvalidReplicaAssignment(
                f"topic {name!r}: {list(nodes)} has {len(nodes)} replicas, other partitions have {factor}"
            )
        checked.append(nodes)
    return checked


def _new_partitions(topic_id: TopicId, first: int, replicas: Sequence[tuple[NodeId, ...]]) -> tuple[Put, ...]:
    encoded: dict[tuple[NodeId, ...], bytes] = {}
    puts = []
    for number, nodes in enumerate(replicas, first):
        value = encoded.get(nodes)
        if value is None:
            state = PartitionState(nodes[0], Epoch(0), nodes, nodes, 0)
            value = encoded[nodes] = records.encode_partition(state)
        puts.append(Put(records.partition_key(topic_id, number), value))
    return tuple(puts)


def _racks(image: Image) -> dict[NodeId, str | None]:
    """The racks of brokers that take new replicas: those about to stop do so if there are no others."""
    racks = {node_id: broker.rack for node_id, broker in image.brokers.items()}
    staying = {node_id: rack for node_id, rack in racks.items() if node_id not in image.stopping}
    return staying or racks


def _placement_start(topic_id: TopicId) -> int:
    # Topic ids are random, so this spreads topics over brokers without another source of chance.
    return int.from_bytes(topic_id[-4:])


# Settings.


def _write_configs(image: Image, resource: ConfigResource, configs: Mapping[str, str]) -> Change:
    match resource:
        case TopicResource(name):
            topic = image.topics[name]
            if topic.configs == configs:
                return Change()
            key = records.topic_key(name)
            value = records.encode_topic(topic.topic_id, len(topic.partitions), configs)
            return Change(compares=(Compare(key, topic.mod_revision),), puts=(Put(key, value),))
        case BrokerResource() | GroupResource():
            key = (
                records.broker_config_key(resource.node_id)
                if isinstance(resource, BrokerResource)
                else records.group_config_key(resource.group_id)
            )
            compare = Compare(key, image.config_revisions.get(key, ABSENT))
            if not configs:
                return Change(compares=(compare,), deletes=(key,) if compare.mod_revision else ())
            return Change(compares=(compare,), puts=(Put(key, records.encode_configs(configs)),))


# Producer ids.


def _set_next_producer_id(image: Image, next_producer_id: int) -> Change:
    key = records.PRODUCER_IDS_KEY
    return Change(
        compares=(Compare(key, image.producer_ids_revision),),
        puts=(Put(key, records.encode_producer_ids(next_producer_id)),),
    )


# Brokers.


def _register_broker(image: Image, command: RegisterBroker, policy: Policy) -> Change:
    broker = command.broker
    present = image.brokers.get(broker.node_id)
    if present is not None and present.incarnation != broker.incarnation:
        # Whoever holds the lock on a data directory is the successor of the broker that registered it.
        is_successor = any(directory in present.directory_ids for directory in broker.directory_ids)
        if present.directory_ids and not is_successor:
            raise NodeIdInUse(broker.node_id, present.incarnation)
    key = records.broker_key(broker.node_id)
    broker = replace(broker, lease_id=command.lease_id)
    puts = [Put(key, records.encode_broker(broker), command.lease_id)]
    if command.lease_id is not None:
        # This record stays when the lease ends.
        puts.append(Put(records.member_key(broker.node_id), records.encode_member(broker)))
        if policy.is_filling_enabled and broker.node_id not in image.members and image.topics:
            # A broker that was emptied on purpose is a member, and stays empty.
            puts.append(Put(records.filling_key(broker.node_id), b"{}"))
    deletes: tuple[str, ...] = ()
    if command.offline:
        value = records.encode_offline(command.offline)
        puts.append(Put(records.offline_key(broker.node_id), value, command.lease_id))
    elif broker.node_id in image.offline:
        deletes = (records.offline_key(broker.node_id),)
    compare = Compare(key, ABSENT if present is None else present.epoch)
    return Change(compares=(compare,), puts=tuple(puts), deletes=deletes)


def _report_offline(image: Image, command: ReportOffline) -> Change:
    broker = _registered(image, command.node_id, command.incarnation)
    compares = (Compare(records.broker_key(broker.node_id), broker.epoch),)
    key = records.offline_key(broker.node_id)
    if not command.replicas:
        return Change(compares=compares, deletes=(key,))
    put = Put(key, records.encode_offline(command.replicas), broker.lease_id)
    return Change(compares=compares, puts=(put,))


def _unregister_broker(image: Image, command: UnregisterBroker) -> Change:
    present = image.brokers.get(command.node_id)
    if present is None or present.incarnation != command.incarnation:
        return Change()
    key = records.broker_key(command.node_id)
    return Change(compares=(Compare(key, present.epoch),), deletes=(key,))


def _claim_controller(image: Image, command: ClaimController) -> Change:
    if image.controller_id is not None:
        return Change()
    broker = _registered(image, command.node_id, command.incarnation)
    # The office hangs on the broker's own lease: a broker that is out of the cluster must not rule it.
    put = Put(records.CONTROLLER_KEY, records.encode_controller(broker.node_id), broker.lease_id)
    compares = (
        Compare(records.CONTROLLER_KEY, ABSENT),
        Compare(records.broker_key(broker.node_id), broker.epoch),
    )
    return Change(compares=compares, puts=(put,))


def _begin_stop(image: Image, command: BeginStop) -> Change:
    broker = _registered(image, command.node_id, command.incarnation)
    if command.node_id in image.stopping:
        return Change()
    compare = Compare(records.broker_key(broker.node_id), broker.epoch)
    return Change(
        compares=(compare,), puts=(Put(records.stopping_key(broker.node_id), b"{}", broker.lease_id),)
    )


def _end_filling(image: Image, command: EndFilling) -> Change:
    revision = image.filling.get(command.node_id)
    if revision is None or image.controller_revision != command.controller_revision:
        # The filling has ended already, or another controller decides about it by now.
        return Change()
    key = records.filling_key(command.node_id)
    compares = (
        Compare(key, revision),
        Compare(records.CONTROLLER_KEY, command.controller_revision),
    )
    return Change(compares=compares, deletes=(key,))


def _remove_member(image: Image, command: RemoveMember) -> Change:
    node_id = command.node_id
    member = image.members.get(node_id)
    if member is None:
        raise NotAMember(node_id)
    if node_id in image.brokers:
        raise BrokerAlive(node_id)
    key = records.member_key(node_id)
    return Change(
        compares=(Compare(key, member.mod_revision), Compare(records.broker_key(node_id), ABSENT)),
        deletes=(key, records.filling_key(node_id)) if node_id in image.filling else (key,),
    )


def _registered(image: Image, node_id: NodeId, incarnation: str) -> BrokerState:
    broker = image.brokers.get(node_id)
    if broker is None or broker.incarnation != incarnation:
        raise UnknownBroker(node_id)
    return broker


# Logs that the store does not know yet.


def _adopt_topic(image: Image, command: AdoptTopic) -> Change:
    check_topic_name(command.name)
    _check_absent(image, command.name, command.topic_id)
    nodes = (command.node_id,)
    count = max(command.leader_epochs) + 1
    early_puts = []
    for number in range(count):
        epoch = max(command.leader_epochs.get(number, NO_EPOCH), Epoch(0))
        value = records.encode_partition(PartitionState(command.node_id, epoch, nodes, nodes, 0))
        early_puts.append(Put(records.partition_key(command.topic_id, number), value))
    key = records.topic_key(command.name)
    put = Put(key, records.encode_topic(command.topic_id, count, {}))
    return Change(compares=(Compare(key, ABSENT),), puts=(put,), early_puts=tuple(early_puts))


def _raise_leader_epochs(image: Image, command: RaiseLeaderEpochs) -> Change:
    topic = image.topics_by_id.get(command.topic_id)
    if topic is None:
        raise UnknownTopicId(command.topic_id)
    compares, puts = [], []
    for number, epoch in command.leader_epochs.items():
        state = topic.partitions[number]
        if epoch <= state.leader_epoch:
            continue
        key = records.partition_key(topic.topic_id, number)
        raised = state._replace(leader_epoch=epoch, partition_epoch=state.partition_epoch + 1)
        compares.append(Compare(key, state.mod_revision))
        puts.append(Put(key, records.encode_partition(raised)))
    return Change(compares=tuple(compares), puts=tuple(puts))


def _confirm_deletion(image: Image, command: ConfirmDeletion) -> Change:
    deleted = image.deleted_topics.get(command.topic_id)
    if deleted is None:
        return Change()
    key = records.deleted_topic_key(command.topic_id)
    compare = Compare(key, deleted.mod_revision)
    left = [node_id for node_id in deleted.brokers if node_id != command.node_id]
    if not left:
        return Change(compares=(compare,), deletes=(key,))
    return Change(compares=(compare,), puts=(Put(key, records.encode_deleted_topic(deleted.name, left)),))
