"""What single requests may change about partitions, and what is said to those that may not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millrace.core.ids import Epoch, NodeId
from millrace.metadata import records
from millrace.metadata.commands import (
    Alteration,
    AlterConfigs,
    AlterIsr,
    AlterOperation,
    BeginStop,
    Change,
    ClaimController,
    ElectionKind,
    ElectLeader,
    Policy,
    Reassign,
    RegisterBroker,
    RemoveMember,
    ReportOffline,
    TopicResource,
    UnregisterBroker,
)
from millrace.metadata.controller import as_batch, decide
from millrace.metadata.errors import (
    BrokerAlive,
    ElectionNotNeeded,
    IneligibleReplica,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    MetadataError,
    NoEligibleLeader,
    NoReassignment,
    NotAMember,
    PreferredLeaderUnavailable,
    StaleState,
    UnknownBroker,
    UnknownPartition,
)
from millrace.metadata.fold import fold
from millrace.metadata.image import NO_LEADER, Image, PartitionState
from millrace.metadata.leadership import assign_leaders, restore_preferred_leaders, withdraw_replicas
from millrace.metadata.store import LeaseId
from tests.unit.metadata.worlds import apply, broker, cluster, new_topic, topic_id


def four_brokers(min_insync: int = 1) -> Image:
    topic = new_topic(
        "t",
        1,
        assignments={0: [1, 2, 3], 1: [2, 3, 1]},
        configs={"min.insync.replicas": str(min_insync)},
    )
    return apply(cluster("a", "b", "c", "d"), topic)


def state_of(image: Image, partition: int = 0) -> PartitionState:
    return image.topics["t"].partitions[partition]


def without(image: Image, *node_ids: int) -> Image:
    """These brokers are lost, and the controller has reacted."""
    for node_id in node_ids:
        image = apply(image, UnregisterBroker(NodeId(node_id), "first"))
    updates = assign_leaders(image, image.topics.values(), Policy())
    return fold(image, as_batch(image, Change(puts=tuple(update.put() for update in updates))))


def alter(image: Image, isr: Sequence[int], **changed: object) -> AlterIsr:
    state = state_of(image)
    fields: dict[str, object] = {
        "topic_id": topic_id(1),
        "partition": 0,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "isr": [NodeId(node_id) for node_id in isr],
        **changed,
    }
    return AlterIsr(**fields)  # type: ignore[arg-type]  # whatever a test puts in


class TestAlterIsr:
    def test_the_leader_shrinks_and_grows_it(self) -> None:
        image = four_brokers()
        image = apply(image, alter(image, [1, 3]))
        assert (state_of(image).isr, state_of(image).partition_epoch) == ((1, 3), 1)
        image = apply(image, alter(image, [3, 2, 1]))
        assert (state_of(image).isr, state_of(image).leader_epoch) == ((1, 2, 3), 0)

    def test_the_same_isr_again_is_no_change(self) -> None:
        image = four_brokers()
        assert decide(image, alter(image, [1, 2, 3]), Policy()).is_empty

    @pytest.mark.parametrize(
        "changed",
        [
            {"leader_id": NodeId(2)},
            {"leader_epoch": Epoch(7)},
            {"partition_epoch": 7},
        ],
        ids=str,
    )
    def test_a_decision_on_another_state_is_refused(self, changed: dict[str, object]) -> None:
        image = four_brokers()
        with pytest.raises(StaleState):
            decide(image, alter(image, [1, 2], **changed), Policy())

    def test_a_leader_out_of_the_cluster_changes_nothing_before_others_noticed(self) -> None:
        image = apply(four_brokers(), UnregisterBroker(NodeId(1), "first"))
        with pytest.raises(StaleState):
            decide(image, alter(image, [1]), Policy())

    @pytest.mark.parametrize("isr", [[2, 3], [1, 1], [1, 4]], ids=str)
    def test_it_has_the_leader_and_replicas_only(self, isr: list[int]) -> None:
        image = four_brokers()
        with pytest.raises(IneligibleReplica):
            decide(image, alter(image, isr), Policy())

    def test_who_is_gone_or_about_to_stop_does_not_join(self) -> None:
        image = without(four_brokers(), 3)
        with pytest.raises(IneligibleReplica):
            decide(image, alter(image, [1, 2, 3]), Policy())
        image = apply(image, RegisterBroker(broker(3, incarnation="second"), None))
        joined = alter(image, [1, 2, 3])
        assert state_of(apply(image, joined)).isr == (1, 2, 3)
        image = apply(image, BeginStop(NodeId(3), "second"))
        with pytest.raises(IneligibleReplica):
            decide(image, joined, Policy())

    def test_who_started_again_since_it_caught_up_does_not_join(self) -> None:
        image = without(four_brokers(), 3)
        image = apply(image, RegisterBroker(broker(3, incarnation="second"), None))
        epoch = image.brokers[NodeId(3)].epoch
        joined = alter(image, [1, 2, 3], broker_epochs={NodeId(3): epoch})
        assert state_of(apply(image, joined)).isr == (1, 2, 3)
        image = apply(image, UnregisterBroker(NodeId(3), "second"))
        image = apply(image, RegisterBroker(broker(3, incarnation="third"), None))
        with pytest.raises(IneligibleReplica):
            decide(image, joined, Policy())

    def test_the_commit_compares_all_that_it_rests_on(self) -> None:
        image = without(four_brokers(), 3)
        image = apply(image, RegisterBroker(broker(3, incarnation="second"), None))
        change = decide(image, alter(image, [1, 2, 3]), Policy())
        assert [compare.key for compare in change.compares] == [
            records.partition_key(topic_id(1), 0),
            "brokers/1",
            "brokers/3",
            "stopping/3",
            "offline/3",
        ]


class TestEligibleReplicas:
    def test_another_minimum_makes_them_void(self) -> None:
        image = without(four_brokers(min_insync=2), 2, 3)
        assert (state_of(image).isr, state_of(image).eligible) == ((1,), (2, 3))
        # From now on broker 1 commits alone.
        alteration = Alteration("min.insync.replicas", AlterOperation.SET, "1")
        image = apply(image, AlterConfigs(TopicResource("t"), [alteration]))
        image = without(image, 1)
        image = apply(image, RegisterBroker(broker(2, incarnation="second"), None))
        assert state_of(without(image)).leader == NO_LEADER

    def test_naming_them_compares_the_settings_that_they_rest_on(self) -> None:
        image = four_brokers(min_insync=2)
        change = decide(image, alter(image, [1]), Policy())
        assert records.topic_key("t") in [compare.key for compare in change.compares]


class TestElections:
    def test_the_preferred_leader_leads_again(self) -> None:
        image = without(four_brokers(), 1)
        image = apply(image, RegisterBroker(broker(1, incarnation="second"), None))
        with pytest.raises(PreferredLeaderUnavailable):
            decide(image, ElectLeader("t", 0, ElectionKind.PREFERRED), Policy())
        image = apply(image, alter(image, [1, 2, 3]))
        image = apply(image, ElectLeader("t", 0, ElectionKind.PREFERRED))
        assert (state_of(image).leader, state_of(image).leader_epoch) == (1, 2)
        with pytest.raises(ElectionNotNeeded):
            decide(image, ElectLeader("t", 0, ElectionKind.PREFERRED), Policy())

    def test_an_unclean_one_is_for_partitions_without_a_leader(self) -> None:
        image = four_brokers()
        with pytest.raises(ElectionNotNeeded):
            decide(image, ElectLeader("t", 0, ElectionKind.UNCLEAN), Policy())
        image = apply(image, alter(image, [1]))
        image = without(image, 1)
        assert state_of(image).leader == NO_LEADER
        elected = apply(image, ElectLeader("t", 0, ElectionKind.UNCLEAN))
        assert (state_of(elected).leader, state_of(elected).isr) == (2, (2,))
        with pytest.raises(NoEligibleLeader):
            decide(without(image, 2, 3), ElectLeader("t", 0, ElectionKind.UNCLEAN), Policy())

    @pytest.mark.parametrize("partition", [-1, 2])
    def test_a_partition_that_is_not_there_is_named(self, partition: int) -> None:
        with pytest.raises(UnknownPartition, match=f"t-{partition}"):
            decide(four_brokers(), ElectLeader("t", partition, ElectionKind.PREFERRED), Policy())

    def test_balance_is_restored_only_for_brokers_that_lead_too_few(self) -> None:
        image = without(four_brokers(), 1)
        image = apply(image, RegisterBroker(broker(1, incarnation="second"), None))
        image = apply(image, alter(image, [1, 2, 3]))
        assert restore_preferred_leaders(image, imbalance_percent=100) == []
        (update,) = restore_preferred_leaders(image, imbalance_percent=10)
        assert (update.partition, update.after.leader) == (0, 1)


class TestReassignments:
    def test_a_move_ends_when_the_new_replica_is_in_sync(self) -> None:
        image = apply(four_brokers(), Reassign(topic="t", partition=0, replicas=[1, 2, 4]))
        assert (state_of(image).adding, state_of(image).removing) == ((4,), (3,))
        image = apply(image, alter(image, [1, 2, 3, 4]))
        assert state_of(image).replicas == state_of(image).isr == (1, 2, 4)
        assert not state_of(image).adding + state_of(image).removing

    def test_it_can_be_cancelled_until_then(self) -> None:
        image = apply(four_brokers(), Reassign(topic="t", partition=0, replicas=[1, 2, 4]))
        image = apply(image, Reassign(topic="t", partition=0, replicas=None))
        assert sorted(state_of(image).replicas) == [1, 2, 3]
        with pytest.raises(NoReassignment):
            decide(image, Reassign(topic="t", partition=0, replicas=None), Policy())

    @pytest.mark.parametrize(
        "replicas, error",
        [
            ([], InvalidReplicaAssignment),
            ([1, 1], InvalidReplicaAssignment),
            ([1, 9], InvalidReplicaAssignment),
            ([1, 2], InvalidReplicationFactor),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_refused(self, replicas: list[int], error: type[MetadataError]) -> None:
        command = Reassign(topic="t", partition=0, replicas=replicas, is_factor_change_allowed=False)
        with pytest.raises(error):
            decide(four_brokers(), command, Policy())


class TestMembers:
    def test_a_member_is_remembered_when_it_is_down_and_forgotten_on_request(self) -> None:
        image = apply(cluster("a"), RegisterBroker(broker(2), LeaseId(7)))
        assert image.brokers[NodeId(2)].lease_id == 7
        assert image.fenced == ()
        with pytest.raises(BrokerAlive):
            decide(image, RemoveMember(NodeId(2)), Policy())
        image = apply(image, UnregisterBroker(NodeId(2), "first"))
        assert image.fenced == (2,)
        image = apply(image, RemoveMember(NodeId(2)))
        assert image.fenced == ()
        with pytest.raises(NotAMember):
            decide(image, RemoveMember(NodeId(2)), Policy())

    def test_a_broker_that_is_not_registered_rules_nothing(self) -> None:
        image = cluster("a", "b")
        with pytest.raises(UnknownBroker):
            decide(image, ClaimController(NodeId(1), "second"), Policy())
        image = apply(image, ClaimController(NodeId(1), "first"))
        assert image.controller_id == 1
        assert decide(image, ClaimController(NodeId(2), "first"), Policy()).is_empty

    def test_a_broker_about_to_stop_gets_no_new_replicas(self) -> None:
        image = apply(cluster("a", "b", "c"), BeginStop(NodeId(2), "first"))
        image = apply(image, new_topic("t", 1, partitions=6, replicas=2))
        assert all(2 not in state.replicas for state in image.topics["t"].partitions)


# Disks that have failed.


def report(image: Image, node_id: int, *numbers: int) -> Image:
    """A broker's replicas of these partitions are offline, and the controller has reacted."""
    image = apply(image, ReportOffline(NodeId(node_id), "first", {topic_id(1): numbers}))
    return with_leaders(image)


def with_leaders(image: Image) -> Image:
    updates = assign_leaders(image, image.topics.values(), Policy())
    image = fold(image, as_batch(image, Change(puts=tuple(update.put() for update in updates))))
    assert assign_leaders(image, image.topics.values(), Policy()) == []
    return image


def test_others_lead_what_is_on_a_failed_disk_and_nothing_else_changes() -> None:
    before = four_brokers()
    image = report(before, 1, 0)
    state = state_of(image)
    assert (state.leader, state.isr, state.eligible) == (2, (2, 3), ())
    assert state.leader_epoch == state_of(before).leader_epoch + 1
    assert state_of(image, 1) == state_of(before, 1)
    assert image.topology_revision > before.topology_revision
    with pytest.raises(PreferredLeaderUnavailable):
        apply(image, ElectLeader("t", 0, ElectionKind.PREFERRED))
    assert restore_preferred_leaders(image, imbalance_percent=0) == []
    with pytest.raises(IneligibleReplica, match="disk"):
        apply(image, alter(image, [1, 2, 3]))


def test_a_replica_on_a_failed_disk_is_not_eligible_whatever_the_minimum() -> None:
    image = report(four_brokers(min_insync=3), 1, 0)
    state = state_of(image)
    assert (state.leader, state.isr, state.eligible) == (2, (2, 3), ())


def test_the_last_replica_leads_again_when_its_disk_is_back() -> None:
    image = without(four_brokers(), 2, 3)
    image = report(apply(image, alter(image, [1])), 1, 0)
    state = state_of(image)
    assert (state.leader, state.last_leader, state.isr) == (NO_LEADER, 1, ())
    # Not even by force: there is nothing to lead.
    with pytest.raises(NoEligibleLeader):
        apply(image, ElectLeader("t", 0, ElectionKind.UNCLEAN))
    image = with_leaders(apply(image, RegisterBroker(broker(1), None)))
    assert image.offline == {}
    assert state_of(image).leader == 1


def test_a_replica_that_is_made_anew_elsewhere_may_join_again() -> None:
    image = report(four_brokers(), 1, 0)
    image = apply(image, ReportOffline(NodeId(1), "first", {}))
    assert image.offline == {}
    image = apply(image, alter(image, [1, 2, 3]))
    assert state_of(image).isr == (1, 2, 3)


def test_a_broker_registers_with_what_it_cannot_serve() -> None:
    image = without(four_brokers(), 1)
    image = with_leaders(apply(image, RegisterBroker(broker(1), None, {topic_id(1): [0]})))
    assert image.offline_at(topic_id(1), 0) == {1}
    assert image.offline_at(topic_id(1), 1) == frozenset()
    assert 1 not in state_of(image).isr


def test_replicas_that_a_start_does_not_find_are_out_of_sync() -> None:
    image = four_brokers()

    def withdrawn(**found: object) -> dict[int, PartitionState]:
        updates = withdraw_replicas(
            image,
            NodeId(1),
            Policy(),
            is_trusted=True,
            is_empty=False,
            **found,  # type: ignore[arg-type]
        )
        return {update.partition: update.after for update in updates}

    assert withdrawn()[0].isr == (2, 3)
    image = with_leaders(without(four_brokers(), 2, 3))
    trusted = withdrawn()[0]
    # Nobody left before broker 1 said so: whoever comes back intact may lead.
    assert (trusted.leader, trusted.eligible) == (NO_LEADER, (1, 2, 3))
    for number in (0, 1):
        epochs = {
            "leader_epoch": state_of(image, number).leader_epoch,
            "partition_epoch": state_of(image, number).partition_epoch,
        }
        image = apply(image, alter(image, [1], partition=number, **epochs))
    trusted = withdrawn()[0]
    assert (trusted.leader, trusted.eligible) == (NO_LEADER, (1,))
    hidden = withdrawn(unreachable=[(topic_id(1), 0)])
    assert (hidden[0].eligible, hidden[0].last_leader) == ((), 1)
    assert hidden[1].eligible == (1,)
    lost = withdrawn(lost=[(topic_id(1), 0)])
    assert (lost[0].eligible, lost[0].last_leader) == ((), NO_LEADER)
