"""How a group changes its protocol while its members go on, and how a static member changes its id.

A classic group of consumers becomes a consumer group when a member of that protocol joins, and a classic one
again when the last of these leaves. Both ways the members keep their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from millrace.coordinator.decision import Record, Unstored
from millrace.core.ids import TopicId
from millrace.groups.assignors import Partitions
from millrace.groups.classic.group import ClassicGroup
from millrace.groups.classic.member import Member
from millrace.groups.classic.subscriptions import format_assignment, parse_assignment, parse_subscription
from millrace.groups.commands import GroupSettings
from millrace.groups.consumer.changes import target_epoch_record, target_record
from millrace.groups.consumer.commands import ConsumerSettings
from millrace.groups.consumer.group import CONSUMER, ConsumerGroup, member_tombstones
from millrace.groups.consumer.member import ClassicSide, ConsumerMember, EpochsByPartition
from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import GroupNotFound, RebalanceInProgress
from millrace.wire.messages import group_records as stored
from millrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription


def upgrade(
    classic: ClassicGroup,
    settings: ConsumerSettings,
    topics: ConsumerTopics,
    out: Effects,
    now_ms: int,
) -> list[Record]:
    """The records of the consumer group that takes a classic one's place; they are in `out` already."""
    if not settings.allows_upgrade:
        raise GroupNotFound(classic.group_id, "is not a consumer group")
    if classic.protocol_type != CONSUMER:
        raise GroupNotFound(classic.group_id, "is not a group of consumers")
    if len(classic.members) > settings.size_max:
        raise GroupNotFound(classic.group_id, "has too many members to become a consumer group")
    members = _upgraded_members(classic, topics)
    records: list[Record] = []
    names: dict[str, None] = {}
    for member in members:
        names.update(dict.fromkeys(member.topic_names))
        records.append(member.metadata_record(classic.group_id))
    records.append(
        Record(
            stored.ConsumerGroupMetadataKey(group_id=classic.group_id),
            stored.ConsumerGroupMetadataValue(epoch=classic.generation, metadata_hash=topics.hash_of(names)),
        )
    )
    for member in members:
        target = {topic: frozenset(partitions) for topic, partitions in member.assigned.items()}
        records.append(target_record(classic.group_id, member.member_id, target))
    # The time is 0, so that the member that brings the change gets its share at once.
    records.append(target_epoch_record(classic.group_id, classic.generation, 0))
    records += [member.assignment_record(classic.group_id) for member in members]

    for waiting in classic.members.values():
        for token in (waiting.join_token, waiting.sync_token):
            if token is not None:
                out.reply(token, RebalanceInProgress(classic.group_id))
    out.cancel_timer(("join", classic.group_id))
    out.cancel_timer(("sync", classic.group_id))
    for pending in classic.roster.pending_joins:
        out.cancel_timer(("session", classic.group_id, pending))
    out.records += classic.tombstones()
    out.records += records
    return records


def _upgraded_members(classic: ClassicGroup, topics: ConsumerTopics) -> list[ConsumerMember]:
    """The members, each with all that it may be consuming: its assignment, and what it had when it joined
    last.

    A cooperative member goes on consuming what it had until it has read an assignment without it, and joins
    again when it has stopped; in a rebalance that began anew it has no assignment at all. What another member
    is assigned no longer belongs to it."""
    known = [(member, *_read(member, classic.group_id)) for member in classic.members.values()]
    taken = {place for _, _, assignment in known for place in _places(assignment.items(), topics)}
    members = []
    for member, subscription, assignment in known:
        owned = ((each.topic, each.partitions) for each in subscription.owned_partitions)
        left = [place for place in _places(owned, topics) if place not in taken]
        taken.update(left)
        held: dict[TopicId, dict[int, int]] = {}
        for topic, partition in (*_places(assignment.items(), topics), *left):
            held.setdefault(topic, {})[partition] = classic.generation
        members.append(_upgraded(member, subscription, held, classic.generation))
    return members


def _read(member: Member, group_id: str) -> tuple[ConsumerProtocolSubscription, Mapping[str, list[int]]]:
    subscription = parse_subscription(member.protocols[0].metadata)
    assignment = parse_assignment(member.assignment) if member.assignment else {}
    if subscription is None or assignment is None:
        raise GroupNotFound(group_id, "has an assignor whose messages cannot be read")
    return subscription, assignment


def _places(
    partitions: Iterable[tuple[str, Sequence[int]]], topics: ConsumerTopics
) -> Iterable[tuple[TopicId, int]]:
    for name, numbers in partitions:
        topic_id = topics.id_of(name)
        if topic_id is not None:
            for number in numbers:
                yield topic_id, number


def _upgraded(
    member: Member, subscription: ConsumerProtocolSubscription, held: EpochsByPartition, generation: int
) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=tuple(sorted(dict.fromkeys(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
        epoch=generation,
        previous_epoch=generation,
        assigned=held,
    )


def may_downgrade(
    remaining: Sequence[ConsumerMember], settings: ConsumerSettings, classic_settings: GroupSettings
) -> bool:
    return (
        settings.allows_downgrade
        and 0 < len(remaining) <= classic_settings.size_max
        and all(member.classic is not None for member in remaining)
    )


def downgrade(
    group: ConsumerGroup,
    remaining: Iterable[ConsumerMember],
    topics: ConsumerTopics,
    settings: GroupSettings,
    out: Effects,
    now_ms: int,
    *,
    must_rebalance: bool = True,
) -> ClassicGroup:
    """The classic group that takes a consumer group's place, and calls its members to join anew. Its records
    are in `out` already."""
    members = list(remaining)
    protocol = _common_protocol(members)
    value = stored.GroupMetadataValue(
        protocol_type=CONSUMER,
        generation=group.epoch,
        protocol=protocol,
        leader=members[0].member_id,
        current_state_timestamp=now_ms,
        members=[_downgraded(member, protocol, topics) for member in members],
    )
    classic = ClassicGroup.restored(group.group_id, value, settings)
    for member in members:
        assert member.classic is not None, member
        # The record has room for one protocol only, but the others are still offered.
        classic.members[member.member_id].protocols = member.classic.protocols
        for name in ("revocation", "rejoin", "resync"):
            out.cancel_timer((name, group.group_id, member.member_id))
    out.records += group.tombstones()
    out.records.append(Record(stored.GroupMetadataKey(group=group.group_id), value))
    out.unstored.append(Unstored(classic))
    out.timers += classic.resume()
    if must_rebalance:
        classic.prepare_rebalance("the last member of the consumer protocol has left", out, now_ms)
    return classic


def _common_protocol(members: Sequence[ConsumerMember]) -> str:
    common: dict[str, int] = {}
    for member in members:
        assert member.classic is not None, member
        for offered in member.classic.protocols:
            common[offered.name] = common.get(offered.name, 0) + 1
    return max(common, key=lambda name: common[name])


def _downgraded(member: ConsumerMember, protocol: str, topics: ConsumerTopics) -> stored.MemberMetadata:
    assert member.classic is not None, member
    offered = {each.name: each.metadata for each in member.classic.protocols}
    metadata = offered.get(protocol, member.classic.protocols[0].metadata)
    # Store what the member has, not its target: the group may become a consumer group again before it joins.
    held: dict[TopicId, frozenset[int]] = {}
    for owned in (member.assigned, member.revoking):
        for topic, epochs in owned.items():
            held[topic] = held.get(topic, frozenset()).union(epochs)
    return stored.MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.classic.session_timeout_ms,
        subscription=metadata,
        assignment=classic_assignment(held, metadata, topics),
    )


def classic_assignment(
    partitions: Partitions | dict[TopicId, dict[int, int]], subscription: bytes, topics: ConsumerTopics
) -> bytes:
    """Partitions as classic members read them, in the version that their subscription has."""
    named = {}
    for topic, numbers in partitions.items():
        name = topics.name_of(topic)
        if name is not None:
            named[name] = sorted(numbers)
    return format_assignment(dict(sorted(named.items())), like=subscription)


def replace_member(group: ConsumerGroup, old: ConsumerMember, new_id: str, out: Effects) -> ConsumerGroup:
    """Let a static member that is back under a new id take over all that the old one had."""
    group_id = group.group_id
    new = replace(old, member_id=new_id, epoch=0, previous_epoch=0)
    records = [
        *member_tombstones(group_id, old.member_id),
        new.metadata_record(group_id),
        target_record(group_id, new_id, group.target_of(old.member_id)),
        new.assignment_record(group_id),
    ]
    after = group.copy()
    for record in records:
        after.apply(record)
    out.records += records
    for name in ("session", "revocation", "rejoin", "resync"):
        out.cancel_timer((name, group_id, old.member_id))
    return after
