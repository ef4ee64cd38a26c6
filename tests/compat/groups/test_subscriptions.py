"""Regular expressions as subscriptions: of the client, and of the broker."""

from __future__ import annotations

import pytest

from tests.compat.groups.feed import write_numbered
from tests.compat.groups.group import Group, GroupMaker
from tests.compat.groups.members import JavaMember
from tests.harness.topics import create_topic


def _join(group: Group, kind: str, expression: str) -> JavaMember:
    match kind:
        case "classic":
            return group.java(subscription={"pattern": expression})
        case "consumer":
            return group.java_consumer(subscription={"pattern": expression})
        case _:
            return group.java_consumer(subscription={"re2j": expression})


@pytest.mark.parametrize("kind", ["classic", "consumer", "broker-side"])
def test_a_pattern_finds_topics_that_come_later(make_group: GroupMaker, kind: str) -> None:
    group = make_group(f"pattern-{kind}", partitions=2)
    member = _join(group, kind, f"{group.topic}(-more)?")
    other = create_topic(make_group.bootstrap, f"{group.topic}-other", 1)
    group.wait_balanced(member)
    more = create_topic(make_group.bootstrap, f"{group.topic}-more", 1)
    member.wait_for(lambda: (more, 0) in member.owned, 30)
    assert member.owned == group.partitions | {(more, 0)}
    assert (other, 0) not in member.owned
    numbers = write_numbered(make_group.bootstrap, more, 1, 30)
    group.wait_processed(numbers)


def test_a_broken_expression_is_refused_with_a_reason(make_group: GroupMaker) -> None:
    group = make_group("pattern-broken")
    member = _join(group, "broker-side", "(unclosed")
    member.wait_for(lambda: bool(member.told("failed")))
    assert member.told("failed")[0]["error"] == "InvalidRegularExpression"
