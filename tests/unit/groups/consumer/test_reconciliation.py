"""One step of a member towards its target: it gives up before it gets, and gets only what nobody else has."""

from __future__ import annotations

import pytest

from millrace.core.ids import TopicId
from millrace.groups.assignors import Partitions
from millrace.groups.consumer.member import ConsumerMember, EpochsByPartition, MemberState
from millrace.groups.consumer.reconciliation import Owned, Reconciliation
from millrace.groups.errors import FencedMemberEpoch

T, U = TopicId(b"t" * 16), TopicId(b"u" * 16)


def step(
    member: ConsumerMember,
    target: Partitions,
    *,
    target_epoch: int = 2,
    others: dict[tuple[TopicId, int], str] | None = None,
    owned: Owned = None,
    subscribed: frozenset[TopicId] = frozenset({T, U}),
    has_subscription_changed: bool = False,
) -> ConsumerMember:
    owners = {
        (topic, partition): member.member_id
        for held in (member.assigned, member.revoking)
        for topic, epochs in held.items()
        for partition in epochs
    }
    owners.update(others or {})
    return Reconciliation(
        member,
        target_epoch=target_epoch,
        target=target,
        owner_of=lambda topic, partition: owners.get((topic, partition)),
        owned=owned,
        subscribed=subscribed,
    ).step(has_subscription_changed=has_subscription_changed)


def member(
    assigned: EpochsByPartition,
    revoking: EpochsByPartition | None = None,
    state: MemberState = MemberState.STABLE,
    epoch: int = 1,
) -> ConsumerMember:
    return ConsumerMember(member_id="m", epoch=epoch, state=state, assigned=assigned, revoking=revoking or {})


def test_what_is_free_is_had_at_once_with_the_epoch_in_which_it_came() -> None:
    after = step(member({T: {0: 1}}), {T: frozenset({0, 1})})
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.STABLE, 2, 1)
    assert after.assigned == {T: {0: 1, 1: 2}}


def test_a_member_stays_in_its_epoch_until_it_has_given_up() -> None:
    before = member({T: {0: 1, 1: 1}})
    told = step(before, {T: frozenset({0, 2})})
    assert (told.state, told.epoch) == (MemberState.UNREVOKED_PARTITIONS, 1)
    assert (told.assigned, told.revoking) == ({T: {0: 1}}, {T: {1: 1}}), "partition 2 comes later"
    assert step(told, {T: frozenset({0, 2})}, owned=[(T, [0, 1])]) is told, "it still has it"
    assert step(told, {T: frozenset({0, 2})}) is told, "it has not said anything"
    done = step(told, {T: frozenset({0, 2})}, owned=[(T, [0])])
    assert (done.state, done.epoch, done.assigned, done.revoking) == (
        MemberState.STABLE,
        2,
        {T: {0: 1, 2: 2}},
        {},
    )


def test_what_another_member_still_has_is_waited_for() -> None:
    target = {T: frozenset({0, 1})}
    waiting = step(member({T: {0: 1}}), target, others={(T, 1): "other"})
    assert (waiting.state, waiting.epoch) == (MemberState.UNRELEASED_PARTITIONS, 2)
    assert waiting.assigned == {T: {0: 1}}
    assert step(waiting, target, others={(T, 1): "other"}) is waiting, "there is nothing new to store"
    assert step(waiting, target).assigned == {T: {0: 1, 1: 2}}


def test_a_member_in_the_targets_epoch_has_nothing_to_do() -> None:
    before = member({T: {0: 1}}, epoch=2)
    assert step(before, {T: frozenset({0, 1})}) is before


def test_a_narrowed_subscription_takes_effect_before_there_is_a_new_target() -> None:
    before = member({T: {0: 1}, U: {0: 1}}, epoch=2)
    only_t = frozenset({T})
    told = step(before, {}, subscribed=only_t, has_subscription_changed=True)
    assert (told.state, told.assigned, told.revoking) == (
        MemberState.UNREVOKED_PARTITIONS,
        {T: {0: 1}},
        {U: {0: 1}},
    )
    done = step(before, {}, subscribed=only_t, has_subscription_changed=True, owned=[(T, [0])])
    assert (done.state, done.assigned, done.revoking) == (MemberState.STABLE, {T: {0: 1}}, {})


def test_what_is_not_subscribed_is_not_given_whatever_the_target_says() -> None:
    after = step(member({}), {U: frozenset({0})}, subscribed=frozenset({T}))
    assert (after.epoch, after.assigned) == (2, {})


def test_a_state_of_a_later_version_is_left_by_giving_up_everything() -> None:
    before = member({T: {0: 1}}, state=MemberState.UNKNOWN)
    with pytest.raises(FencedMemberEpoch):
        step(before, {T: frozenset({0})})
    with pytest.raises(FencedMemberEpoch):
        step(before, {T: frozenset({0})}, owned=[(T, [0])])
    after = step(before, {T: frozenset({0})}, owned=[])
    assert (after.state, after.epoch) == (MemberState.STABLE, 2)
