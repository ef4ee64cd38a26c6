"""Streams groups under any sequence of events: no task is active twice, no process holds a task twice, all
comes to rest at the target, and what a restart reads from the log is what was there before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from millrace.core.override import override
from millrace.groups.streams.commands import StreamsHeartbeat, StreamsSettings
from millrace.groups.streams.group import StreamsGroup
from millrace.groups.streams.tasks import Role
from millrace.wire.messages.streams_group_records import StreamsGroupTopologyValue
from tests.unit.groups.consumer_lab import GROUP
from tests.unit.groups.streams.topologies import part, topology, word_count
from tests.unit.groups.streams_lab import StreamsClient, StreamsLab, settled, stored_state

TOPOLOGIES = (
    word_count(),
    topology(part("0", ["words", "more"], keeps=["store"])),
    topology(part("0", ["words"]), part("1", ["more"], keeps=["store"]), part("2", ["more"])),
)
TOPICS = ("words", "more", "regrouped", "counts-changelog", "store")


class StreamsGroups(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.lab = StreamsLab(StreamsSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=1_000))
        self.value: StreamsGroupTopologyValue = TOPOLOGIES[0]
        self.count = 0
        self.living: list[StreamsClient] = []
        for topic in TOPICS:
            self.lab.set_topic(topic, 3)

    @rule(target=clients, process=st.sampled_from("pqr"), chosen=st.sampled_from(TOPOLOGIES))
    def join(self, process: str, chosen: StreamsGroupTopologyValue) -> StreamsClient:
        if not self.living:
            # Whoever comes first brings the topology, if those before are all forgotten.
            self.lab.pass_time(60_000)
            self.value = chosen
        self.count += 1
        client = StreamsClient(f"m{self.count}", self.value, process_id=process)
        self.living.append(client)
        client.take(self.lab.submit(client.beat()))
        return client

    @rule(client=clients)
    def beat(self, client: StreamsClient) -> None:
        if client in self.living:
            client.take(self.lab.submit(client.beat()))

    @rule(client=clients)
    def lose_an_answer(self, client: StreamsClient) -> None:
        if client in self.living:
            self.lab.submit(client.beat())

    @rule(client=clients)
    def begin_again(self, client: StreamsClient) -> None:
        """As a client does that was fenced: it gives up all and joins with its old id."""
        if client in self.living:
            client.epoch, client.tasks = 0, {}
            client.take(self.lab.submit(client.beat()))

    @rule(client=consumes(clients))
    def leave(self, client: StreamsClient) -> None:
        if client in self.living:
            self.lab.submit(StreamsHeartbeat(GROUP, client.member_id, -1))
            self.living.remove(client)

    @rule(client=consumes(clients))
    def crash(self, client: StreamsClient) -> None:
        if client in self.living:
            self.living.remove(client)

    @rule(ms=st.sampled_from([10, 5_000, 20_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        for _ in range(ms // 5_000 or 1):
            for client in self.living:
                client.take(self.lab.submit(client.beat()))
            self.lab.pass_time(min(ms, 5_000))

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def change_topic(self, topic: str, partitions: int) -> None:
        self.lab.set_topic(topic, partitions)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        if topic in self.lab.image.topics:
            self.lab.delete_topic(topic)

    @rule(count=st.integers(0, 2))
    def set_standby(self, count: int) -> None:
        self.lab.streams_settings = replace(self.lab.streams_settings, standby_count=count)

    @rule()
    def restart(self) -> None:
        before = self.group
        self.lab.restart()
        if before is not None:
            assert self.group is not None
            assert stored_state(self.group) == stored_state(before)

    @property
    def group(self) -> StreamsGroup | None:
        group = self.lab.machine.groups.get(GROUP)
        assert group is None or isinstance(group, StreamsGroup)
        return group

    @invariant()
    def nobody_works_on_a_task_of_another(self) -> None:
        workers: dict[tuple[str, int], str] = {}
        held: dict[tuple[str, str, int], str] = {}
        for client in self.living:
            for role in Role:
                for name, number in client.of_role(role):
                    here = (client.process_id, name, number)
                    assert here not in held, (here, held[here], client.member_id)
                    held[here] = client.member_id
                    if role is Role.ACTIVE:
                        assert (name, number) not in workers, (name, number, workers[name, number])
                        workers[name, number] = client.member_id

    @invariant()
    def a_compacted_log_says_the_same(self) -> None:
        for is_compacted in (False, True):
            found = self.lab.replayed(is_compacted=is_compacted).groups.get(GROUP)
            assert (found is None) == (self.group is None)
            if isinstance(found, StreamsGroup) and self.group is not None:
                assert stored_state(found) == stored_state(self.group)

    @override
    def teardown(self) -> None:
        """In the end everybody reaches a target in which every task is active exactly once."""
        for topic in TOPICS:
            self.lab.set_topic(topic, 3)
        self.pass_time(60_000)
        settled(self.lab, *self.living)
        if not self.living:
            return
        assert self.group is not None
        assert self.group.state_name == "Stable", self.group
        assert self.group.plan is not None
        expected = [(name, n) for name, count in self.group.plan.task_counts.items() for n in range(count)]
        assert sorted(task for client in self.living for task in client.active) == expected
        for client in self.living:
            target = self.group.target_of(client.member_id)
            assert {place: frozenset(numbers) for place, numbers in client.tasks.items()} == target
        loads = [len(client.active) for client in self.living]
        if self.lab.streams_settings.standby_count == 0:
            assert max(loads) - min(loads) <= 1, loads


StreamsGroups.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestStreamsGroups = StreamsGroups.TestCase


class LongerStreamsGroups(StreamsGroups):
    """The same, at length."""


LongerStreamsGroups.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLongerStreamsGroups = pytest.mark.slow(LongerStreamsGroups.TestCase)
