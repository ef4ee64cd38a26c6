"""Consumer groups under any sequence of events: no partition has two owners, all comes to rest at the target,
and what a restart reads from the log is what was there before."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.core.override import override
from millrace.groups.consumer.commands import Beat, ConsumerHeartbeat
from millrace.groups.consumer.group import ConsumerGroup
from tests.unit.groups.consumer_lab import GROUP, Lab, stored_state

TOPICS = ("a", "b", "c")
NAMES = st.lists(st.sampled_from(TOPICS), unique=True, max_size=3)


class Client:
    """A consumer as the protocol wants it: it consumes what it was told to, and says what it owns."""

    def __init__(self, member_id: str, names: list[str], instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.names = names
        self.epoch = 0
        self.consumes: dict[TopicId, list[int]] = {}
        self.told: dict[TopicId, list[int]] | None = None
        self.is_gone = False
        self.must_tell_all = False
        """After an answer that never came: then nobody knows what the other one knows."""

    def beat(self, *, is_full: bool = False) -> ConsumerHeartbeat:
        is_full = is_full or self.epoch == 0 or self.must_tell_all
        return ConsumerHeartbeat(
            GROUP,
            self.member_id,
            self.epoch,
            self.instance_id,
            rebalance_timeout_ms=10_000 if is_full else -1,
            topic_names=self.names if is_full else None,
            owned=[(topic, list(numbers)) for topic, numbers in self.consumes.items()],
        )

    def take(self, answer: object) -> None:
        self.must_tell_all = False
        if isinstance(answer, MillraceError):
            # Fenced or forgotten: it stops consuming everything and begins anew.
            self.epoch = 0
            self.consumes = {}
            self.told = None
            return
        assert isinstance(answer, Beat), answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.told = {topic: list(numbers) for topic, numbers in answer.assignment.items()}
        self.follow()

    def follow(self) -> None:
        if self.told is not None:
            self.consumes = self.told
            self.told = None


class ConsumerGroups(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab()
        self.lab.set_topic("a", 3)
        self.lab.set_topic("b", 2)
        self.count = 0
        self.living: list[Client] = []

    @rule(target=clients, names=NAMES, static=st.booleans())
    def join(self, names: list[str], static: bool) -> Client:
        self.count += 1
        client = Client(f"m{self.count}", names, f"i{self.count}" if static else None)
        self.living.append(client)
        client.take(self.lab.submit(client.beat()))
        return client

    @rule(client=clients, is_full=st.booleans())
    def beat(self, client: Client, is_full: bool) -> None:
        if not client.is_gone:
            client.take(self.lab.submit(client.beat(is_full=is_full)))

    @rule(client=clients)
    def lose_an_answer(self, client: Client) -> None:
        if not client.is_gone:
            self.lab.submit(client.beat())
            client.must_tell_all = True

    @rule(client=clients, names=NAMES)
    def subscribe(self, client: Client, names: list[str]) -> None:
        if not client.is_gone:
            client.names = names
            client.take(self.lab.submit(client.beat(is_full=True)))

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if not client.is_gone:
            self.lab.submit(ConsumerHeartbeat(GROUP, client.member_id, -1, client.instance_id))
            self.forget(client)

    @rule(client=consumes(clients))
    def crash(self, client: Client) -> None:
        if not client.is_gone:
            self.forget(client)

    @rule(target=clients, client=consumes(clients))
    def restart_static(self, client: Client) -> Client:
        if client.is_gone or client.instance_id is None:
            return client
        self.lab.submit(ConsumerHeartbeat(GROUP, client.member_id, -2, client.instance_id))
        self.forget(client)
        self.count += 1
        returned = Client(f"m{self.count}", client.names, client.instance_id)
        self.living.append(returned)
        returned.take(self.lab.submit(returned.beat()))
        return returned

    def forget(self, client: Client) -> None:
        client.is_gone = True
        client.consumes = {}
        self.living.remove(client)

    @rule(ms=st.sampled_from([10, 5_000, 20_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        for _ in range(ms // 5_000 or 1):
            for client in self.living:
                client.take(self.lab.submit(client.beat()))
            self.lab.pass_time(min(ms, 5_000))

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 5), is_new=st.booleans())
    def change_topic(self, topic: str, partitions: int, is_new: bool) -> None:
        present = self.lab.image.topics.get(topic)
        if present is None or is_new or partitions >= len(present.partitions):
            self.lab.set_topic(topic, partitions, is_new=is_new)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        if topic in self.lab.image.topics:
            self.lab.delete_topic(topic)

    @rule()
    def restart_coordinator(self) -> None:
        self.lab.restart()

    @invariant()
    def no_partition_is_consumed_twice(self) -> None:
        seen: dict[tuple[TopicId, int], str] = {}
        for client in self.living:
            # Only who still belongs to the group counts: the others have been told to stop by its time-outs.
            group = self.lab.machine.groups.get(GROUP)
            if not isinstance(group, ConsumerGroup) or client.member_id not in group.members:
                continue
            for topic, partitions in client.consumes.items():
                for partition in partitions:
                    assert (topic, partition) not in seen, (client.member_id, seen[topic, partition])
                    seen[topic, partition] = client.member_id

    @invariant()
    def replay_is_the_live_state(self) -> None:
        live = self.lab.machine.groups.get(GROUP)
        for is_compacted in (False, True):
            replayed = self.lab.replayed(is_compacted=is_compacted).groups.get(GROUP)
            if not isinstance(live, ConsumerGroup):
                assert not isinstance(replayed, ConsumerGroup)
                continue
            assert isinstance(replayed, ConsumerGroup)
            assert stored_state(replayed) == stored_state(live)

    @override
    def teardown(self) -> None:
        """When nothing happens any more, everybody gets to its target."""
        for _ in range(20):
            for client in self.living:
                client.take(self.lab.submit(client.beat()))
            self.lab.pass_time(5_000)
        group = self.lab.machine.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            assert not self.living
            return
        assert group.state_name == ("Stable" if self.living else "Empty"), group
        assert sorted(group.members) == sorted(client.member_id for client in self.living)
        owned = {}
        for client in self.living:
            target = {topic: sorted(numbers) for topic, numbers in group.target_of(client.member_id).items()}
            assert {topic: sorted(numbers) for topic, numbers in client.consumes.items()} == target
            owned.update({(topic, n): client for topic, numbers in target.items() for n in numbers})
        wanted = {
            (topic.topic_id, number)
            for name, topic in self.lab.image.topics.items()
            if any(name in client.names for client in self.living)
            for number in range(len(topic.partitions))
        }
        assert set(owned) == wanted


ConsumerGroups.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestConsumerGroups = ConsumerGroups.TestCase


class LongerConsumerGroups(ConsumerGroups):
    """The same, at length."""


LongerConsumerGroups.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestLongerConsumerGroups = pytest.mark.slow(LongerConsumerGroups.TestCase)
