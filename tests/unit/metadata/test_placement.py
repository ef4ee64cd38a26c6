from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import NodeId
from millrace.metadata.errors import InvalidReplicationFactor
from millrace.metadata.placement import place_replicas

RACKS = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9)


def brokers(racks: list[str | None]) -> dict[NodeId, str | None]:
    return {NodeId(number): rack for number, rack in enumerate(racks, 1)}


@given(RACKS, st.integers(1, 4), st.integers(1, 40), st.integers(0, 2**32))
def test_every_placement_is_sound_and_leaders_are_even(
    racks: list[str | None], factor: int, count: int, start: int
) -> None:
    known = brokers(racks)
    factor = min(factor, len(known))
    placed = place_replicas(known, partition_count=count, replication_factor=factor, start=start)
    assert len(placed) == count
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(node_id, 0) for node_id in known) <= 1
    # A broker without a rack counts as one of its own.
    rack_of = {node_id: rack or node_id for node_id, rack in known.items()}
    rack_sizes = Counter(rack_of.values())
    for replicas in placed:
        assert len(set(replicas)) == factor
        load = Counter(rack_of[node_id] for node_id in replicas)
        for rack, held in load.items():
            # A rack gets a second replica only when every other has as many or is full.
            assert all(
                load[other] >= held - 1 or load[other] == size for other, size in rack_sizes.items()
            ), rack


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 100), st.integers(1, 20), st.integers(1, 20))
def test_partitions_added_later_go_where_they_would_have_gone_at_once(
    node_count: int, factor: int, start: int, first: int, added: int
) -> None:
    known = brokers([None] * node_count)
    factor = min(factor, node_count)
    whole = place_replicas(known, partition_count=first + added, replication_factor=factor, start=start)
    later = place_replicas(
        known, partition_count=added, replication_factor=factor, start=start, first_partition=first
    )
    assert later == whole[first:]


def test_followers_of_one_leader_are_spread_over_all_others() -> None:
    known = brokers([None] * 5)
    placed = place_replicas(known, partition_count=100, replication_factor=2, start=0)
    followers = Counter(second for first, second in placed if first == 1)
    assert set(followers) == {2, 3, 4, 5}
    assert max(followers.values()) - min(followers.values()) <= 1


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match="3 needs as many brokers, 2 are registered"):
        place_replicas(brokers([None, None]), partition_count=1, replication_factor=3, start=0)
