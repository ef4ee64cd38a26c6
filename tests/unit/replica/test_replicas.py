"""Three replicas of a partition as plain objects: what was committed stays, whatever happens to brokers, and
no offset ever has two values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

from millrace.replica.leadership import Leadership
from millrace.replica.partition import Partition
from tests.unit.replica.model import LAG_MS, NODES, Trio

A, B, C = NODES


@pytest.fixture
def trio() -> Iterator[Trio]:
    trio = Trio()
    yield trio
    trio.dispose()


def all_learn(trio: Trio) -> None:
    for node_id in NODES:
        trio.learn(node_id)


def replicate(trio: Trio, rounds: int = 2) -> None:
    for _ in range(rounds):
        for node_id in NODES:
            trio.fetch(node_id)


def test_what_all_in_sync_have_is_committed_and_told_with_the_next_fetch(trio: Trio) -> None:
    trio.produce(A)
    assert trio.nodes[A].partition.log.high_watermark == 0
    trio.fetch(B)
    trio.fetch(C)
    assert trio.nodes[A].partition.log.high_watermark == 0
    trio.fetch(B)
    trio.fetch(C)
    assert trio.nodes[A].partition.log.high_watermark == 1
    assert trio.nodes[C].partition.log.high_watermark == 1
    assert trio.nodes[B].partition.log.high_watermark == 0
    trio.fetch(B)
    assert trio.nodes[B].partition.log.high_watermark == 1


def test_a_waiting_produce_is_answered_when_the_last_in_sync_has_fetched(trio: Trio) -> None:
    partition = trio.nodes[A].partition
    answers: list[bool] = []
    trio.produce(A)
    partition.waiting_produces.add(1, answers.append)
    replicate(trio, rounds=1)
    assert answers == []
    trio.fetch(B)
    assert answers == []
    trio.fetch(C)
    assert answers == [True]


def test_who_waits_is_told_when_leadership_ends(trio: Trio) -> None:
    answers: list[bool] = []
    trio.produce(A)
    trio.nodes[A].partition.waiting_produces.add(1, answers.append)
    trio.move_leader(B)
    trio.learn(A)
    assert answers == [False]


def test_f1_a_follower_behind_in_what_is_committed_keeps_its_records_when_it_restarts(trio: Trio) -> None:
    """KIP-101: B has two records but knows of one as committed. It restarts, and leads at once. Cutting to
    its high watermark would lose the second, which A has acknowledged."""
    trio.produce(A)
    replicate(trio, 3)
    trio.produce(A)
    trio.fetch(B)
    trio.fetch(C)
    trio.fetch(C)
    trio.fetch(B)
    assert trio.nodes[A].partition.log.high_watermark == 2
    trio.kill(B)
    trio.start(B)
    trio.learn(B)
    trio.fetch(B)
    trio.adjust_isr(A)
    trio.move_leader(B)
    trio.kill(A)
    all_learn(trio)
    assert len(trio.nodes[B].values()) == 2
    trio.heal()
    trio.check_agreement()


def test_f2_two_quick_failovers_leave_one_history(trio: Trio) -> None:
    """KIP-279: A writes in epoch 0 alone, B in epoch 1 alone, then C leads, which knows neither. Both must
    find where they leave C's history."""
    trio.produce(A)
    replicate(trio, 3)
    trio.produce(A)
    trio.produce(A)
    trio.move_leader(B)
    trio.learn(B)
    trio.produce(B)
    trio.move_leader(C)
    trio.learn(C)
    trio.produce(C)
    all_learn(trio)
    assert len({tuple(node.values()) for node in trio.nodes.values()}) == 3
    trio.heal()
    trio.check_agreement()
    assert [epoch for epoch, _ in trio.nodes[A].values()] == [0, 2]


def test_f3_a_fetch_for_a_term_that_is_over_moves_nothing(trio: Trio) -> None:
    trio.produce(A)
    trio.move_leader(B)
    trio.learn(B)
    # C has not heard of it, and A neither: they go on among themselves, but B is in sync and does not fetch.
    trio.fetch(C)
    trio.fetch(C)
    assert trio.nodes[A].partition.log.high_watermark == 0
    assert trio.promised == []


def test_f11_a_leader_that_was_away_commits_nothing_more(trio: Trio) -> None:
    """It was paused, another one was elected, and it does not know yet."""
    trio.produce(A)
    replicate(trio, 3)
    trio.move_leader(B)
    trio.learn(B)
    trio.learn(C)
    trio.produce(A)
    trio.produce(B)
    replicate(trio, 3)
    trio.now_ms += 10 * LAG_MS
    trio.adjust_isr(A)
    assert trio.state.leader == B
    assert trio.nodes[A].partition.log.high_watermark == 1
    trio.heal()
    trio.check_agreement()


def test_f23_pause_and_kill_leave_one_value_at_each_offset(trio: Trio) -> None:
    trio.produce(A)
    replicate(trio, 3)
    trio.move_leader(B)
    trio.learn(B)
    trio.produce(A)
    trio.produce(A)
    trio.produce(B)
    trio.kill(B)
    trio.learn(C)
    trio.produce(C)
    trio.start(B)
    trio.heal()
    trio.check_agreement()


def test_f5_one_node_forgets_what_was_not_flushed(trio: Trio) -> None:
    for _ in range(5):
        trio.produce(A)
        replicate(trio)
    replicate(trio)
    trio.kill(A)
    trio.start(A, lost_records=3)
    assert A not in trio.state.isr
    all_learn(trio)
    trio.heal()
    trio.check_agreement()
    assert len(trio.promised) == 5


def test_f33_an_empty_disk_neither_leads_nor_counts_until_it_caught_up(trio: Trio) -> None:
    for _ in range(3):
        trio.produce(A)
        replicate(trio)
    trio.kill(A)
    all_learn(trio)
    trio.start(A, lost_records=99)
    trio.kill(B)
    trio.kill(C)
    assert trio.state.leader != A
    trio.heal()
    trio.check_agreement()
    assert len(trio.promised) == 3


def test_f32_a_slow_replica_leaves_and_comes_back(trio: Trio) -> None:
    trio.produce(A)
    replicate(trio, 3)
    for _ in range(3):
        trio.now_ms += LAG_MS
        trio.produce(A)
        trio.fetch(B)
        trio.fetch(B)
        trio.adjust_isr(A)
        trio.learn(A)
    assert trio.state.isr == (A, B)
    assert trio.nodes[A].partition.log.high_watermark == 4
    trio.heal()
    trio.check_agreement()


def test_min_insync_is_checked_before_and_holds_after(trio: Trio) -> None:
    trio.produce(A)
    replicate(trio, 3)
    trio.kill(B)
    trio.kill(C)
    trio.learn(A)
    partition = trio.nodes[A].partition
    assert not partition.has_enough_replicas
    trio.produce(A)
    assert partition.log.high_watermark == 1
    trio.heal()
    trio.check_agreement()


class Replicas(RuleBasedStateMachine):
    """Whatever the order of writes, fetches, crashes, restarts, elections and news of them."""

    def __init__(self) -> None:
        super().__init__()
        self.trio = Trio()

    nodes = st.sampled_from(NODES)

    @rule(node=nodes, count=st.integers(1, 3))
    def produce(self, node: int, count: int) -> None:
        for _ in range(count):
            self.trio.produce(NODES[node - 1])

    @rule(node=nodes)
    def fetch(self, node: int) -> None:
        self.trio.fetch(NODES[node - 1])

    @rule()
    def fetch_all(self) -> None:
        replicate(self.trio)

    @rule(node=nodes)
    def fetch_little(self, node: int) -> None:
        self.trio.fetch(NODES[node - 1], max_bytes=1)

    @rule(node=nodes)
    def learn(self, node: int) -> None:
        self.trio.learn(NODES[node - 1])

    @rule(node=nodes)
    def adjust_isr(self, node: int) -> None:
        self.trio.adjust_isr(NODES[node - 1])

    @rule(node=nodes)
    def move_leader(self, node: int) -> None:
        self.trio.move_leader(NODES[node - 1])

    @rule(node=nodes)
    def kill(self, node: int) -> None:
        self.trio.kill(NODES[node - 1])

    @rule(node=nodes, lost=st.integers(0, 4))
    def start(self, node: int, lost: int) -> None:
        self.trio.start(NODES[node - 1], lost_records=lost)

    @rule(ms=st.sampled_from((10, LAG_MS // 2, 2 * LAG_MS)))
    def pass_time(self, ms: int) -> None:
        self.trio.now_ms += ms

    @override
    def teardown(self) -> None:
        self.trio.heal()
        self.trio.check_agreement()
        self.trio.dispose()


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


# What the guards are for: with one of them out, the same checks fail.


def test_without_truncation_by_epoch_histories_differ(monkeypatch: pytest.MonkeyPatch, trio: Trio) -> None:
    monkeypatch.setattr(Partition, "divergence", lambda *_: None)
    with pytest.raises(AssertionError):
        test_f2_two_quick_failovers_leave_one_history(trio)


def test_without_waiting_for_those_in_sync_acknowledged_records_are_lost(
    monkeypatch: pytest.MonkeyPatch, trio: Trio
) -> None:
    monkeypatch.setattr(Leadership, "committed_up_to", lambda _, own_end_offset: own_end_offset)
    trio.produce(A)
    trio.nodes[A].partition.commit_what_is_replicated()
    trio.check()
    assert len(trio.promised) == 1
    trio.kill(A)
    with pytest.raises(AssertionError):
        _go_on_with_b(trio)


def _go_on_with_b(trio: Trio) -> None:
    all_learn(trio)
    trio.produce(B)
    trio.nodes[B].partition.commit_what_is_replicated()
    trio.heal()
    trio.check_agreement()


def test_without_counting_a_wish_a_new_member_may_miss_what_is_committed(
    monkeypatch: pytest.MonkeyPatch, trio: Trio
) -> None:
    """C is let in, and elected, before the leader hears that its wish was granted."""
    trio = _with_c_left_behind(trio)
    monkeypatch.setattr(Leadership, "_count", _count_the_isr_alone)
    monkeypatch.setattr(Leadership, "_is_about_to_join", lambda *_: False)
    with pytest.raises(AssertionError):
        _let_c_in_and_elect_it(trio)


def test_a_wish_that_counts_keeps_what_is_committed(trio: Trio) -> None:
    trio = _with_c_left_behind(trio)
    _let_c_in_and_elect_it(trio)
    trio.heal()
    trio.check_agreement()


def _with_c_left_behind(trio: Trio) -> Trio:
    trio.kill(C)
    all_learn(trio)
    trio.start(C)
    trio.learn(C)
    return trio


def _let_c_in_and_elect_it(trio: Trio) -> None:
    trio.fetch(C)
    trio.adjust_isr(A)
    assert C in trio.state.isr
    trio.produce(A)
    trio.fetch(B)
    trio.fetch(B)
    trio.check()
    trio.move_leader(C)
    all_learn(trio)
    trio.produce(C)
    trio.heal()
    trio.check_agreement()


def _count_the_isr_alone(leadership: Leadership) -> None:
    for follower in leadership.followers:
        follower.is_counted = follower.node_id in leadership.isr
