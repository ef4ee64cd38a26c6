"""Who leads and who is in sync, by example: one partition, brokers that come and go."""

from __future__ import annotations

import pytest

from millrace.core.ids import Epoch, NodeId
from millrace.metadata import election
from millrace.metadata.election import ElectionRules, Standing
from millrace.metadata.image import NO_LEADER, PartitionState

CLEAN = ElectionRules(min_isr=1, is_unclean_allowed=False)
TWO = ElectionRules(min_isr=2, is_unclean_allowed=False)
UNCLEAN = ElectionRules(min_isr=1, is_unclean_allowed=True)


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(node_id) for node_id in ids)


def there(*live: int, stopping: tuple[int, ...] = ()) -> Standing:
    return Standing(frozenset(nodes(*live)), frozenset(node for node in nodes(*live) if node not in stopping))


def led_by(
    leader: int,
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] | None = None,
    eligible: tuple[int, ...] = (),
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    last_leader: int = NO_LEADER,
) -> PartitionState:
    return PartitionState(
        NodeId(leader),
        Epoch(5),
        nodes(*replicas),
        nodes(*(replicas if isr is None else isr)),
        partition_epoch=10,
        adding=nodes(*adding),
        removing=nodes(*removing),
        eligible=nodes(*eligible),
        last_leader=NodeId(last_leader),
    )


def leadership(state: PartitionState) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return state.leader, state.leader_epoch, state.isr, state.eligible


def test_nothing_changes_while_everybody_is_there() -> None:
    state = led_by(1)
    assert election.is_up_to_date(state, there(1, 2, 3))
    assert election.elect(state, there(1, 2, 3), CLEAN) is state


def test_a_lost_follower_leaves_the_isr_and_the_leader_stays_in_its_epoch() -> None:
    state = election.elect(led_by(1), there(1, 2), CLEAN)
    assert leadership(state) == (1, 5, (1, 2), ())
    assert state.partition_epoch == 11


def test_a_lost_leader_is_followed_by_the_first_replica_in_sync() -> None:
    state = election.elect(led_by(1), there(2, 3), CLEAN)
    assert leadership(state) == (2, 6, (2, 3), ())
    state = election.elect(led_by(1, isr=(1, 3)), there(2, 3), TWO)
    assert leadership(state) == (3, 6, (3,), (1,))


def test_a_replica_out_of_sync_never_leads_where_elections_are_clean() -> None:
    state = election.elect(led_by(1, isr=(1,)), there(2, 3), CLEAN)
    assert leadership(state) == (NO_LEADER, 6, (), (1,))
    assert state.last_leader == 1


def test_a_replica_out_of_sync_leads_where_that_is_allowed_and_counts_alone() -> None:
    state = election.elect(led_by(1, isr=(1,)), there(2, 3), UNCLEAN)
    assert leadership(state) == (2, 6, (2,), ())


def test_the_last_replica_standing_leads_again_when_it_is_back() -> None:
    lost = election.elect(led_by(1, isr=(1,)), there(2, 3), CLEAN)
    back = election.elect(lost, there(1, 2, 3), CLEAN)
    assert leadership(back) == (1, 7, (1,), ())
    assert back.last_leader == NO_LEADER


def test_who_left_below_the_minimum_may_lead_because_the_high_watermark_stood_still() -> None:
    two_left = election.elect(led_by(1), there(1, 2), TWO)
    assert leadership(two_left) == (1, 5, (1, 2), ())
    one_left = election.elect(two_left, there(1), TWO)
    assert leadership(one_left) == (1, 5, (1,), (2,))
    # Broker 3 left while two were in sync: records may be committed without it.
    none_left = election.elect(one_left, there(3), TWO)
    assert leadership(none_left) == (NO_LEADER, 6, (), (1, 2))
    assert leadership(election.elect(none_left, there(2, 3), TWO)) == (2, 7, (2,), (1,))


def test_an_isr_that_is_large_enough_again_makes_nobody_eligible() -> None:
    state = election.alter_isr(led_by(1, isr=(1,), eligible=(2,)), nodes(1, 3), there(1, 3), TWO)
    assert leadership(state) == (1, 5, (1, 3), ())


def test_a_replica_that_may_have_lost_records_is_neither_in_sync_nor_eligible() -> None:
    state = election.withdraw(led_by(1), NodeId(1), there(2, 3), CLEAN, is_empty=False)
    assert leadership(state) == (2, 6, (2, 3), ())
    eligible = led_by(NO_LEADER, isr=(), eligible=(1, 2), last_leader=1)
    state = election.withdraw(eligible, NodeId(1), there(), TWO, is_empty=False)
    assert leadership(state) == (NO_LEADER, 5, (), (2,))


def test_the_last_leader_leads_again_when_nobody_can_be_trusted_more() -> None:
    state = election.withdraw(led_by(1, isr=(1,)), NodeId(1), there(2), CLEAN, is_empty=False)
    assert leadership(state) == (NO_LEADER, 6, (), ())
    assert leadership(election.elect(state, there(2), CLEAN))[0] == NO_LEADER
    assert leadership(election.elect(state, there(1, 2), CLEAN)) == (1, 7, (1,), ())


def test_a_last_leader_with_an_empty_disk_does_not_lead_by_itself() -> None:
    state = election.withdraw(led_by(1, isr=(1,)), NodeId(1), there(2), CLEAN, is_empty=True)
    assert election.elect(state, there(1, 2), CLEAN).leader == NO_LEADER


def test_a_stopping_broker_hands_over_and_leaves_the_isr() -> None:
    state = election.elect(led_by(1), there(1, 2, 3, stopping=(1,)), CLEAN)
    assert leadership(state) == (2, 6, (2, 3), ())


def test_a_stopping_broker_leads_on_while_nobody_else_can() -> None:
    state = led_by(1, isr=(1,))
    assert election.elect(state, there(1, 2, 3, stopping=(1,)), CLEAN) is state


def test_leadership_goes_back_to_the_preferred_leader_only_when_it_is_in_sync() -> None:
    back = election.prefer(led_by(2), there(1, 2, 3))
    assert back is not None
    assert leadership(back) == (1, 6, (1, 2, 3), ())
    assert election.prefer(led_by(2, isr=(2, 3)), there(1, 2, 3)) is None
    assert election.prefer(led_by(2), there(1, 2, 3, stopping=(1,))) is None


def test_an_election_by_hand_takes_whoever_is_there() -> None:
    offline = led_by(NO_LEADER, isr=(), eligible=(1,), last_leader=1)
    assert election.elect_any(offline, there(), CLEAN) is None
    elected = election.elect_any(offline, there(3), CLEAN)
    assert elected is not None
    assert leadership(elected) == (3, 6, (3,), ())


class TestTheLastOne:
    """With a minimum of one nobody is eligible beside the last one in sync, which may be registered and yet
    be gone. So nobody leaves the ISR for its sake before it says so itself."""

    def test_who_is_lost_stays_in_the_isr_until_the_leader_says_otherwise(self) -> None:
        alone = election.elect(led_by(1, isr=(1, 2)), there(2, 3), CLEAN)
        assert leadership(alone) == (2, 6, (1, 2), ())
        assert election.elect(alone, there(2, 3), CLEAN) is alone
        spoken = election.alter_isr(alone, nodes(2), there(2, 3), CLEAN)
        assert leadership(spoken) == (2, 6, (2,), ())

    def test_a_lost_follower_is_the_business_of_the_leader_as_well(self) -> None:
        state = led_by(1, isr=(1, 2))
        assert election.elect(state, there(1, 3), CLEAN) is state

    def test_a_stopping_broker_hands_over_and_is_let_go_by_the_new_leader(self) -> None:
        state = election.elect(led_by(1, isr=(1, 2)), there(1, 2, 3, stopping=(1,)), CLEAN)
        assert leadership(state) == (2, 6, (1, 2), ())

    def test_an_intact_one_leads_when_the_last_one_lost_its_page_cache_without_a_word(self) -> None:
        killed = election.elect(led_by(1, isr=(1, 2)), there(2, 3), CLEAN)
        both_gone = election.elect(killed, there(3), CLEAN)
        assert leadership(both_gone) == (NO_LEADER, 7, (), (1, 2))
        powerless = election.withdraw(both_gone, NodeId(2), there(3), CLEAN, is_empty=False)
        assert leadership(election.elect(powerless, there(2, 3), CLEAN)) == (NO_LEADER, 7, (), (1,))
        assert leadership(election.elect(powerless, there(1, 2, 3), CLEAN)) == (1, 8, (1,), ())

    def test_it_leads_at_once_when_it_is_back_first(self) -> None:
        killed = election.elect(led_by(1, isr=(1, 2)), there(2, 3), CLEAN)
        # Broker 1 is registered again before the lease of broker 2, which has no power, is over.
        assert election.elect(killed, there(1, 2, 3), CLEAN) is killed
        assert leadership(election.elect(killed, there(1, 3), CLEAN)) == (1, 7, (1, 2), ())
        powerless = election.withdraw(killed, NodeId(2), there(1, 3), CLEAN, is_empty=False)
        assert leadership(powerless) == (1, 7, (1,), ())

    def test_who_went_on_alone_by_its_own_word_is_not_passed_over(self) -> None:
        """It may have acknowledged records since that nobody else has."""
        alone = election.alter_isr(led_by(1, isr=(1, 2)), nodes(1), there(1, 3), CLEAN)
        gone = election.elect(alone, there(2, 3), CLEAN)
        assert leadership(gone) == (NO_LEADER, 6, (), (1,))

    def test_all_that_went_together_are_in_sync_again_with_the_first_that_is_back(self) -> None:
        gone = led_by(NO_LEADER, isr=(), eligible=(1, 2), last_leader=1)
        back = election.elect(gone, there(2, 3), CLEAN)
        assert leadership(back) == (2, 6, (1, 2), ())
        assert leadership(election.elect(gone, there(2, 3), TWO)) == (2, 6, (2,), (1,))

    def test_a_sole_replica_waits_for_nobody(self) -> None:
        state = led_by(1, replicas=(1, 2), isr=(1, 2))
        single = election.reassign(state, nodes(1), there(1, 2), TWO)
        assert leadership(single) == (1, 6, (1,), ())


class TestReassignment:
    def test_replicas_are_added_before_any_is_removed(self) -> None:
        moving = election.reassign(led_by(1), nodes(4, 2, 3), there(1, 2, 3, 4), CLEAN)
        assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 3, 1), (4,), (1,))
        assert leadership(moving) == (1, 5, (1, 2, 3), ())

    def test_it_ends_when_all_that_were_added_are_in_sync(self) -> None:
        moving = election.reassign(led_by(1), nodes(4, 2, 3), there(1, 2, 3, 4), CLEAN)
        done = election.alter_isr(moving, nodes(1, 2, 3, 4), there(1, 2, 3, 4), CLEAN)
        assert (done.replicas, done.adding, done.removing) == ((4, 2, 3), (), ())
        assert leadership(done) == (4, 6, (4, 2, 3), ())

    def test_one_that_only_takes_away_ends_at_once_in_a_new_epoch(self) -> None:
        done = election.reassign(led_by(1), nodes(1, 2), there(1, 2, 3), CLEAN)
        assert (done.replicas, done.removing) == ((1, 2), ())
        assert leadership(done) == (1, 6, (1, 2), ())

    def test_a_new_order_alone_moves_nothing(self) -> None:
        done = election.reassign(led_by(1), nodes(3, 2, 1), there(1, 2, 3), CLEAN)
        assert (done.replicas, done.adding, done.removing) == ((3, 2, 1), (), ())
        assert done.leader == 1

    def test_it_waits_while_the_brokers_that_stay_are_not_there(self) -> None:
        moving = election.reassign(led_by(1, isr=(1,)), nodes(2), there(1), CLEAN)
        assert (moving.replicas, moving.removing, moving.leader) == ((2, 1, 3), (1, 3), 1)

    def test_another_goal_keeps_what_is_on_its_way(self) -> None:
        moving = election.reassign(led_by(1), nodes(4, 5, 1), there(1, 2, 3, 4, 5), CLEAN)
        turned = election.reassign(moving, nodes(4, 1, 6), there(1, 2, 3, 4, 5, 6), CLEAN)
        assert turned.adding == (4, 6)
        assert turned.removing == (5, 2, 3)

    def test_cancelled_it_is_as_before(self) -> None:
        before = led_by(1)
        moving = election.reassign(before, nodes(1, 4, 5), there(1, 2, 3, 4, 5), CLEAN)
        back = election.cancel_reassignment(moving, there(1, 2, 3, 4, 5), CLEAN)
        assert back is not None
        assert sorted(back.replicas) == [1, 2, 3]
        assert (back.adding, back.removing, back.leader) == ((), (), 1)

    def test_it_is_not_cancelled_when_only_new_replicas_are_in_sync(self) -> None:
        moving = led_by(4, replicas=(4, 5, 1), isr=(4,), adding=(4, 5), removing=(1,))
        assert election.cancel_reassignment(moving, there(1, 4), CLEAN) is None


@pytest.mark.parametrize("rules", [CLEAN, TWO, UNCLEAN])
@pytest.mark.parametrize("lost", [(), (1,), (2,), (1, 2), (1, 2, 3)])
def test_electing_twice_changes_nothing_more(lost: tuple[int, ...], rules: ElectionRules) -> None:
    standing = there(*(node for node in (1, 2, 3) if node not in lost))
    once = election.elect(led_by(1), standing, rules)
    assert election.elect(once, standing, rules) is once
