"""Records of the store: what is written is read back; what older brokers did not write has its default."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import Epoch, NodeId, TopicId
from millrace.metadata import records
from millrace.metadata.image import NO_LEADER, BrokerState, Endpoint, PartitionState
from millrace.metadata.store import LeaseId
from tests.unit.metadata.worlds import topic_id

nodes = st.lists(st.integers(0, 9).map(NodeId), max_size=4, unique=True).map(tuple)
topic_ids = st.binary(min_size=16, max_size=16).map(TopicId)
states = st.builds(
    PartitionState,
    leader=st.integers(-1, 9).map(NodeId),
    leader_epoch=st.integers(0, 99).map(Epoch),
    replicas=nodes,
    isr=nodes,
    partition_epoch=st.integers(0, 99),
    adding=nodes,
    removing=nodes,
    mod_revision=st.integers(1, 99),
    eligible=nodes,
    last_leader=st.integers(-1, 9).map(NodeId),
)


@given(states)
def test_a_partition_comes_back(state: PartitionState) -> None:
    assert records.decode_partition(records.encode_partition(state), state.mod_revision) == state


@given(topic_ids, st.integers(0, 10_000))
def test_the_key_of_a_partition_names_it(found_id: TopicId, partition: int) -> None:
    assert records.partition_of_key(records.partition_key(found_id, partition)) == (found_id, partition)


@given(st.dictionaries(topic_ids, st.frozensets(st.integers(0, 9)), max_size=3))
def test_offline_replicas_come_back(replicas: dict[TopicId, frozenset[int]]) -> None:
    found = records.decode_offline(records.encode_offline(replicas), 7)
    assert (found.replicas, found.mod_revision) == (replicas, 7)


def test_a_broker_comes_back_with_the_revision_as_its_epoch() -> None:
    broker = BrokerState(
        node_id=NodeId(3),
        incarnation="first",
        rack=None,
        endpoints=(Endpoint("PLAINTEXT", "host", 9092, "PLAINTEXT"),),
        directory_ids=("a", "b"),
        epoch=12,
        lease_id=LeaseId(5),
        boot_id="boot",
    )
    assert records.decode_broker(3, records.encode_broker(broker), 12) == broker
    member = records.decode_member(3, records.encode_member(broker), 12)
    assert (member.directory_ids, member.boot_id) == (("a", "b"), "boot")


def test_what_an_older_broker_did_not_write_has_its_default() -> None:
    old = orjson.dumps({"leader": 1, "epoch": 2, "replicas": [1, 2], "isr": [1], "partition_epoch": 3})
    state = records.decode_partition(old, 4)
    assert (state.adding, state.removing, state.eligible, state.last_leader) == ((), (), (), NO_LEADER)
    alone = orjson.dumps({"incarnation": "i", "rack": "r", "directories": [], "endpoints": []})
    broker = records.decode_broker(1, alone, 4)
    assert (broker.lease_id, broker.boot_id) == (None, "")


def test_fields_that_a_newer_broker_adds_are_passed_over() -> None:
    newer = orjson.dumps({"id": "the-cluster", "colour": "green"})
    assert records.decode_cluster(newer) == "the-cluster"


def test_equal_states_share_their_memory() -> None:
    value = records.encode_partition(PartitionState(NodeId(1), Epoch(0), (NodeId(1),), (NodeId(1),), 0))
    assert records.decode_partition(value, 5) is records.decode_partition(value, 5)


def test_names_that_differ_in_dots_and_underscores_alone_share_a_key() -> None:
    assert records.name_guard_key("a.b_c") == records.name_guard_key("a_b.c")
    assert records.name_guard_key("abc") is None


def test_topics_deletions_and_plain_values_come_back() -> None:
    found = records.decode_topic(records.encode_topic(topic_id(1), 3, {"a": "b"}))
    assert found == (topic_id(1), 3, {"a": "b"})
    deleted = records.decode_deleted_topic(topic_id(1), records.encode_deleted_topic("t", [1, 2]), 9)
    assert (deleted.name, deleted.brokers, deleted.mod_revision) == ("t", (1, 2), 9)
    assert records.decode_controller(records.encode_controller(4)) == 4
    assert records.decode_producer_ids(records.encode_producer_ids(2_000)) == 2_000
    assert records.decode_configs(records.encode_configs({"x": "y"})) == {"x": "y"}
