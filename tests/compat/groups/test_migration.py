"""A group changes its protocol while it works, member by member, in both directions."""

from __future__ import annotations

import pytest

from tests.compat.groups.feed import Feed
from tests.compat.groups.group import GroupMaker


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_classic_group_becomes_a_consumer_group_member_by_member(
    make_group: GroupMaker, assignor: str
) -> None:
    group = make_group("upgrade")
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        old = [group.java(assignor=assignor), group.java(assignor=assignor)]
        group.wait_balanced(*old)
        new = [group.java_consumer()]
        group.wait_balanced(*old, *new)
        for member in (*old, *new):
            group.wait_progress(member)
        old[0].stop()
        new.append(group.java_consumer())
        group.wait_balanced(old[1], *new)
        old[1].stop()
        group.wait_balanced(*new)
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_consumer_group_becomes_a_classic_group_member_by_member(
    make_group: GroupMaker, assignor: str
) -> None:
    group = make_group("downgrade")
    with Feed(make_group.bootstrap, group.topic, len(group.partitions)) as feed:
        new = [group.java_consumer(), group.java_consumer()]
        group.wait_balanced(*new)
        old = [group.java(assignor=assignor)]
        group.wait_balanced(*new, *old)
        for member in (*old, *new):
            group.wait_progress(member)
        new[0].stop()
        old.append(group.java(assignor=assignor))
        group.wait_balanced(new[1], *old)
        # The last member of the new protocol leaves, and what remains is a classic group.
        new[1].stop()
        group.wait_balanced(*old)
        group.wait_progress(old[0])
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)


def test_a_group_that_has_only_offsets_takes_either_protocol(make_group: GroupMaker) -> None:
    group = make_group("alternating", partitions=2)
    with Feed(make_group.bootstrap, group.topic, 2) as feed:
        for join in (group.java, group.java_consumer, group.java):
            member = join()
            group.wait_balanced(member)
            group.wait_progress(member)
            member.stop()
        last = group.java_consumer()
        group.wait_balanced(last)
        produced = feed.finish()
        group.wait_processed(produced)
    group.check_history(produced)
