"""Members come and go in order: every record is processed exactly once, by the one owner of its partition."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.groups import history
from tests.compat.groups.feed import Feed
from tests.compat.groups.group import Group, GroupMaker
from tests.compat.groups.members import Member

Join = Callable[[Group], Member]

JOINS: dict[str, Join] = {
    "librdkafka range": lambda group: group.confluent(assignor="range"),
    "librdkafka roundrobin": lambda group: group.confluent(assignor="roundrobin"),
    "librdkafka cooperative-sticky": lambda group: group.confluent(assignor="cooperative-sticky"),
    "librdkafka consumer uniform": lambda group: group.confluent_consumer(assignor="uniform"),
    "librdkafka consumer range": lambda group: group.confluent_consumer(assignor="range"),
    "java range": lambda group: group.java(assignor="range"),
    "java roundrobin": lambda group: group.java(assignor="roundrobin"),
    "java sticky": lambda group: group.java(assignor="sticky"),
    "java cooperative-sticky": lambda group: group.java(assignor="cooperative-sticky"),
    "java consumer uniform": lambda group: group.java_consumer(assignor="uniform"),
    "java consumer range": lambda group: group.java_consumer(assignor="range"),
    "aiokafka": lambda group: group.aiokafka(assignor="range"),
    "kafka-python": lambda group: group.kafka_python(assignor="range"),
}


@pytest.mark.parametrize("kind", JOINS)
def test_each_record_is_processed_once_while_members_join_and_leave(
    make_group: GroupMaker, kind: str
) -> None:
    group, join = make_group("orderly"), JOINS[kind]
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        first = join(group)
        group.wait_balanced(first)
        group.wait_progress(first)
        second, third = join(group), join(group)
        group.wait_balanced(first, second, third)
        assert [len(member.owned) for member in (first, second, third)] == [2, 2, 2]
        group.wait_progress(third)
        first.stop()
        group.wait_balanced(second, third)
        assert len(second.owned) == len(third.owned) == 3
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
    assert len(history.processings(group.members)) == len(produced)
    if "java" in kind:
        history.assert_one_member_per_generation(group.members)


def test_four_clients_share_one_group(make_group: GroupMaker) -> None:
    group = make_group("shared", partitions=8)
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        members = [group.confluent(), group.java(), group.aiokafka(), group.kafka_python()]
        group.wait_balanced(*members)
        assert [len(member.owned) for member in members] == [2, 2, 2, 2]
        for member in members:
            group.wait_progress(member)
        members[0].stop()
        group.wait_balanced(*members[1:])
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)


def test_both_clients_share_one_group_of_the_new_protocol(make_group: GroupMaker) -> None:
    group = make_group("shared")
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        members = [group.confluent_consumer(), group.java_consumer()]
        group.wait_balanced(*members)
        assert [len(member.owned) for member in members] == [3, 3]
        for member in members:
            group.wait_progress(member)
        members[0].stop()
        group.wait_balanced(members[1])
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
    assert len(history.processings(group.members)) == len(produced)


@pytest.mark.parametrize(
    "kind", ["librdkafka cooperative-sticky", "java cooperative-sticky", "java consumer uniform"]
)
def test_members_that_keep_partitions_are_not_stopped(make_group: GroupMaker, kind: str) -> None:
    """Incremental rebalancing: who joins takes some partitions, and the others are never given up."""
    group, join = make_group("incremental"), JOINS[kind]
    first = join(group)
    group.wait_balanced(first)
    second = join(group)
    group.wait_balanced(first, second)
    given_up = [tuple(each) for event in first.told("revoked") for each in event["partitions"]]
    assert sorted(given_up) == sorted(second.owned)
    assert not first.told("lost")
    received = [tuple(each) for event in first.told("assigned") for each in event["partitions"]]
    assert len(received) == len(group.partitions), "the first member was given its partitions again"
