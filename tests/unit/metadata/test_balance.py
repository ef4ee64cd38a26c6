"""Balance over brokers and racks: every plan is sound, even, and moves no more than it must."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.core.ids import NodeId, TopicPartition
from millrace.metadata.balance import plan_balance
from millrace.metadata.errors import InvalidReplicationFactor
from millrace.metadata.placement import place_replicas

Assignments = dict[TopicPartition, tuple[NodeId, ...]]


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(node_id) for node_id in ids)


def brokers(*racks: str | None) -> dict[NodeId, str | None]:
    """Brokers 1, 2, ... in these racks."""
    return {NodeId(number): rack for number, rack in enumerate(racks, 1)}


def placed(racks: dict[NodeId, str | None], partitions: int, replicas: int) -> Assignments:
    found = place_replicas(racks, partition_count=partitions, replication_factor=replicas, start=0)
    return {TopicPartition("t", number): place for number, place in enumerate(found)}


def moved_count(before: Assignments, after: Assignments) -> int:
    return sum(len(set(after[name]) - set(before[name])) for name in before)


def test_what_is_balanced_stays() -> None:
    racks = brokers("a", "b", "c")
    assert plan_balance(placed(racks, 9, 3), racks) == {}


def test_a_new_broker_gets_its_share_and_no_more_moves_than_that() -> None:
    before = placed(brokers(None, None, None), 40, 3)
    after = {**before, **plan_balance(before, brokers(None, None, None, None))}
    assert Counter(node for place in after.values() for node in place) == dict.fromkeys((1, 2, 3, 4), 30)
    assert moved_count(before, after) == 30
    assert Counter(place[0] for place in after.values()) == dict.fromkeys((1, 2, 3, 4), 10)


def test_a_drained_broker_is_left_by_all() -> None:
    racks = brokers("a", "a", "b", "b")
    before = placed(racks, 12, 2)
    after = {**before, **plan_balance(before, racks, drained=nodes(2))}
    assert all(2 not in place for place in after.values())
    # The other rack has a copy of everything, so nothing but broker 1 can take what broker 2 had.
    assert all({racks[node] for node in place} == {"a", "b"} for place in after.values())


def test_replicas_that_share_a_rack_are_parted() -> None:
    before = {TopicPartition("t", 0): nodes(1, 2)}
    assert plan_balance(before, brokers("a", "a", "b")) == {TopicPartition("t", 0): nodes(1, 3)}


def test_too_few_brokers_are_said_before_anything_moves() -> None:
    racks = brokers("a", "b", "c")
    with pytest.raises(InvalidReplicationFactor, match="t-0 has 3 replicas"):
        plan_balance(placed(racks, 1, 3), racks, drained=nodes(1))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_plan_is_sound_and_even(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6), "brokers")
    names = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=count, max_size=count))
    racks = brokers(*names)
    factor = data.draw(st.integers(1, count), "replication factor")
    everybody = [*racks, NodeId(98), NodeId(99)]
    before = {
        TopicPartition("t", number): tuple(data.draw(st.permutations(everybody))[:factor])
        for number in range(data.draw(st.integers(1, 12), "partitions"))
    }
    after = {**before, **plan_balance(before, racks)}
    for name, place in after.items():
        assert len(set(place)) == len(place) == factor, name
        assert set(place) <= set(racks), name
    assert plan_balance(after, racks) == {}, "a plan that was carried out leaves nothing to do"
    if len(set(names) - {None}) <= 1 and None not in names:
        held = Counter(node for place in after.values() for node in place)
        counts = [held[node] for node in racks]
        assert max(counts) - min(counts) <= 1
