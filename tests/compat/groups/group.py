"""One consumer group under test: its topic, its members of any client, and what must hold in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import pytest

from tests.compat.groups import history
from tests.compat.groups.members import JavaMember, JavaMembers, Member, Partition, PythonMember
from tests.harness.topics import create_topic, unique_name

AnyMember = TypeVar("AnyMember", bound=Member)

SESSION_MS: Final = 3_000
JAVA_ASSIGNORS: Final = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class Group:
    def __init__(self, maker: GroupMaker, name: str, topic: str, partitions: int) -> None:
        self.name = name
        self.topic = topic
        self.partitions: set[Partition] = {(topic, number) for number in range(partitions)}
        self.members: list[Member] = []
        self._maker = maker

    def confluent(self, *, assignor: str = "range", instance: str | None = None) -> PythonMember:
        """A classic member of librdkafka."""
        config = {
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
        }
        return self._python("confluent", config, instance)

    def confluent_consumer(self, *, assignor: str | None = None, instance: str | None = None) -> PythonMember:
        """A member of librdkafka with the broker-side protocol."""
        config: dict[str, Any] = {"group.protocol": "consumer"}
        if assignor is not None:
            config["group.remote.assignor"] = assignor
        return self._python("confluent", config, instance)

    def kafka_python(self, *, assignor: str = "range", instance: str | None = None) -> PythonMember:
        return self._plain_python("kafka-python", assignor, instance)

    def aiokafka(self, *, assignor: str = "range", instance: str | None = None) -> PythonMember:
        return self._plain_python("aiokafka", assignor, instance)

    def java(
        self,
        *,
        assignor: str = "range",
        instance: str | None = None,
        config: Mapping[str, Any] | None = None,
        subscription: Mapping[str, Any] | None = None,
    ) -> JavaMember:
        """A classic member of Kafka's Java client; `assignor` may name several, separated by commas."""
        classes = ",".join(JAVA_ASSIGNORS[name] for name in assignor.split(","))
        own = {
            "group.protocol": "classic",
            "partition.assignment.strategy": classes,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
        }
        return self._java(own | dict(config or {}), subscription, instance)

    def java_consumer(
        self,
        *,
        assignor: str | None = None,
        instance: str | None = None,
        config: Mapping[str, Any] | None = None,
        subscription: Mapping[str, Any] | None = None,
    ) -> JavaMember:
        """A member of Kafka's Java client with the broker-side protocol."""
        own = {"group.protocol": "consumer"} | ({"group.remote.assignor": assignor} if assignor else {})
        return self._java(own | dict(config or {}), subscription, instance)

    def wait_balanced(self, *members: Member, deadline_s: float = 60.0) -> None:
        """Wait until these members own all partitions, each one owner, and everybody has its share."""

        def is_balanced() -> bool:
            owned = [member.owned for member in members]
            together = [partition for each in owned for partition in each]
            # On the way there a group of the new protocol may own everything, but not yet evenly.
            is_even = max(map(len, owned)) - min(map(len, owned)) <= 1
            return len(together) == len(self.partitions) == len(set(together)) and all(owned) and is_even

        self._wait(
            is_balanced,
            deadline_s,
            lambda: f"no balance: { {member.name: sorted(member.owned) for member in members} }",
        )

    def wait_processed(self, numbers: set[int], deadline_s: float = 60.0) -> None:
        def seen() -> set[int]:
            return {each.number for each in history.processings(self.members)}

        self._wait(
            lambda: numbers <= seen(),
            deadline_s,
            lambda: (
                f"{len(numbers - seen())} of {len(numbers)} records not processed, "
                f"owners { {member.name: sorted(member.owned) for member in self.members} }"
            ),
        )

    def wait_progress(self, member: Member, records: int = 1, deadline_s: float = 60.0) -> None:
        """Wait until the member has processed so many more records."""
        wanted = member.processed_count + records
        member.wait_for(lambda: member.processed_count >= wanted, deadline_s)

    def check_history(self, produced: set[int]) -> None:
        history.assert_nothing_skipped(self.members, produced)
        history.assert_one_owner_at_a_time(self.members)
        history.assert_repeats_only_after_failures(self.members)

    def _python(self, client: str, config: Mapping[str, Any], instance: str | None) -> PythonMember:
        own = dict(config) | {"group.id": self.name}
        if instance is not None:
            own["group.instance.id"] = instance
        return self._add(
            PythonMember(self._member_name(client), client, self._maker.bootstrap, [self.topic], own)
        )

    def _plain_python(self, client: str, assignor: str, instance: str | None) -> PythonMember:
        own: dict[str, Any] = {
            "group_id": self.name,
            "assignors": [assignor],
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": 300,
        }
        if instance is not None:
            own["group_instance_id"] = instance
        return self._add(
            PythonMember(self._member_name(client), client, self._maker.bootstrap, [self.topic], own)
        )

    def _java(
        self, config: Mapping[str, Any], subscription: Mapping[str, Any] | None, instance: str | None
    ) -> JavaMember:
        host = self._maker.java_members
        if host is None:
            pytest.skip("no Java, or Kafka's jars cannot be fetched")
        own = dict(config) | {"group.id": self.name}
        if instance is not None:
            own["group.instance.id"] = instance
        wanted = subscription or {"topics": [self.topic]}
        return self._add(host.start(self._member_name("java"), self._maker.bootstrap, wanted, own))

    def _add(self, member: AnyMember) -> AnyMember:
        self.members.append(member)
        return member

    def _member_name(self, client: str) -> str:
        return f"{self.name}/{client}-{len(self.members)}"

    def _wait(self, holds: Callable[[], bool], deadline_s: float, explain: Callable[[], str]) -> None:
        deadline = time.monotonic() + deadline_s
        while not holds():
            for member in self.members:
                assert not member.told("failed"), member.told("failed")
            assert time.monotonic() < deadline, f"not within {deadline_s} s: {explain()}"
            time.sleep(0.02)


class GroupMaker:
    """Makes groups and ends all their members with the test."""

    def __init__(self, bootstrap: str, java_members: JavaMembers | None) -> None:
        self.bootstrap = bootstrap
        self.java_members = java_members
        self._groups: list[Group] = []

    def __call__(self, stem: str, partitions: int = 6) -> Group:
        name = unique_name(stem)
        topic = create_topic(self.bootstrap, f"topic-{name}", partitions)
        group = Group(self, name, topic, partitions)
        self._groups.append(group)
        return group

    def end(self) -> None:
        members: Sequence[Member] = [member for group in self._groups for member in group.members]
        for member in members:
            member.end()
