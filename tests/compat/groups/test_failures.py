"""Members crash, hang and come back: nothing is skipped, and nobody owns what is another's."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.compat.groups import history
from tests.compat.groups.committed import CommittedWatch
from tests.compat.groups.feed import Feed
from tests.compat.groups.group import SESSION_MS, Group, GroupMaker
from tests.compat.groups.members import JavaMember, Member, PythonMember
from tests.harness.process import BrokerProcess

Join = Callable[[Group], PythonMember]
JavaJoin = Callable[[Group], JavaMember]

PYTHON: dict[str, Join] = {
    "librdkafka range": lambda group: group.confluent(assignor="range"),
    "librdkafka cooperative-sticky": lambda group: group.confluent(assignor="cooperative-sticky"),
    "librdkafka consumer": lambda group: group.confluent_consumer(),
    "aiokafka": lambda group: group.aiokafka(),
    "kafka-python": lambda group: group.kafka_python(),
}
JAVA: dict[str, JavaJoin] = {
    "java range": lambda group: group.java(config={"max.poll.interval.ms": 2_000}),
    "java consumer": lambda group: group.java_consumer(config={"max.poll.interval.ms": 2_000}),
}


@pytest.mark.parametrize("kind", PYTHON)
def test_a_killed_member_is_replaced_after_its_session(
    make_group: GroupMaker, broker: BrokerProcess, kind: str
) -> None:
    group, join = make_group("crash", partitions=4), PYTHON[kind]
    address = (broker.host, broker.port)
    with (
        Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed,
        CommittedWatch(address, group.name, group.partitions) as watch,
    ):
        survivor, victim = join(group), join(group)
        group.wait_balanced(survivor, victim)
        group.wait_progress(victim, 10)
        victim.fail()
        group.wait_balanced(survivor)
        # And back, as a new process of the same program.
        returned = join(group)
        group.wait_balanced(survivor, returned)
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
    watch.check()


@pytest.mark.parametrize("kind", PYTHON)
def test_a_frozen_member_is_fenced_and_comes_back(
    make_group: GroupMaker, broker: BrokerProcess, kind: str
) -> None:
    """It wakes up with records in its hands and believes to own partitions that are another's by then."""
    group, join = make_group("frozen", partitions=4), PYTHON[kind]
    address = (broker.host, broker.port)
    with (
        Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed,
        CommittedWatch(address, group.name, group.partitions) as watch,
    ):
        survivor, victim = join(group), join(group)
        group.wait_balanced(survivor, victim)
        group.wait_progress(victim, 10)
        victim.freeze()
        survivor.wait_for(lambda: survivor.owned == group.partitions)
        group.wait_progress(survivor, 40)
        victim.thaw()
        group.wait_balanced(survivor, victim)
        group.wait_progress(victim, 10)
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
    watch.check()


@pytest.mark.parametrize("kind", JAVA)
def test_a_java_member_that_vanishes_is_replaced(make_group: GroupMaker, kind: str) -> None:
    group, join = make_group("vanished", partitions=4), JAVA[kind]
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        survivor, victim = join(group), join(group)
        group.wait_balanced(survivor, victim)
        group.wait_progress(victim, 10)
        victim.fail()
        group.wait_balanced(survivor)
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)


@pytest.mark.parametrize("kind", JAVA)
def test_a_java_member_that_stops_polling_gives_up_its_partitions(make_group: GroupMaker, kind: str) -> None:
    group, join = make_group("hanging", partitions=4), JAVA[kind]
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        survivor, victim = join(group), join(group)
        group.wait_balanced(survivor, victim)
        group.wait_progress(victim, 10)
        victim.hang(5_000)
        survivor.wait_for(lambda: survivor.owned == group.partitions)
        victim.wait_for(lambda: bool(victim.told("lost")))
        group.wait_balanced(survivor, victim)
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
    assert victim.told("commit_failed"), "what it held when it hung was committed by nobody"


STATIC: dict[str, Callable[[Group, str], Member]] = {
    "librdkafka": lambda group, instance: group.confluent(instance=instance),
    "librdkafka consumer": lambda group, instance: group.confluent_consumer(instance=instance),
    "java": lambda group, instance: group.java(instance=instance),
    "java consumer": lambda group, instance: group.java_consumer(instance=instance),
}


@pytest.mark.parametrize("kind", STATIC)
def test_a_static_member_gets_its_partitions_back_without_a_rebalance(
    make_group: GroupMaker, kind: str
) -> None:
    group, join = make_group("static", partitions=4), STATIC[kind]
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        stays, restarted = join(group, "one"), join(group, "two")
        group.wait_balanced(stays, restarted)
        group.wait_progress(restarted)
        owned, changes = restarted.owned, len(stays.told("revoked")) + len(stays.told("assigned"))
        restarted.stop()
        again = join(group, "two")
        again.wait_for(lambda: again.owned == owned)
        assert len(stays.told("revoked")) + len(stays.told("assigned")) == changes, stays.events
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
    assert len(history.processings(group.members)) == len(produced)


def test_a_static_member_that_stays_away_loses_its_partitions(make_group: GroupMaker) -> None:
    group = make_group("static", partitions=4)
    stays, leaves = group.confluent(instance="one"), group.confluent(instance="two")
    group.wait_balanced(stays, leaves)
    leaves.stop()
    stopped_at = time.monotonic()
    group.wait_balanced(stays)
    # Its session counts from its last heartbeat, which was at most one interval before.
    assert time.monotonic() - stopped_at > SESSION_MS / 1000 - 1.0


def test_a_second_member_with_the_same_instance_id_fences_the_first(make_group: GroupMaker) -> None:
    group = make_group("static", partitions=4)
    first = group.java(instance="one")
    group.wait_balanced(first)
    second = group.java(instance="one")
    second.wait_for(lambda: second.owned == group.partitions)
    first.wait_for(lambda: bool(first.told("failed")))
    assert first.told("failed")[0]["error"] == "FencedInstanceIdException"
