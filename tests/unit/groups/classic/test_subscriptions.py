"""What consumers tell each other in classic groups, as the broker reads and writes it."""

from __future__ import annotations

import pytest

from millrace.groups.classic.subscriptions import (
    format_assignment,
    parse_assignment,
    parse_subscription,
    subscribed_topics,
)
from tests.unit.groups.worlds import subscription

COOPERATIVE = (
    b"\0\1"  # version 1: with what the member owns
    b"\0\0\0\1\0\1t"
    b"\xff\xff\xff\xff"
    b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\3"
)


def test_a_subscription_tells_topics_and_what_is_owned() -> None:
    plain = parse_subscription(subscription("a", "b"))
    assert plain is not None
    assert (list(plain.topics), list(plain.owned_partitions)) == (["a", "b"], [])
    cooperative = parse_subscription(COOPERATIVE)
    assert cooperative is not None
    assert [(each.topic, list(each.partitions)) for each in cooperative.owned_partitions] == [("t", [0, 3])]


def test_a_newer_version_is_read_as_the_newest_that_is_known() -> None:
    # Version 3 has a generation and a rack behind what is owned; a later one may have more behind these.
    newer = b"\0\x09" + COOPERATIVE[2:] + b"\0\0\0\5" + b"\0\2r1" + b"whatever comes next"
    found = parse_subscription(newer)
    assert found is not None
    assert (list(found.topics), found.generation_id, found.rack_id) == (["t"], 5, "r1")


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\0\0\0\0\x09", b"\0\0\x7f\xff\xff\xff"])
def test_bytes_of_other_protocols_are_no_subscription_and_no_assignment(data: bytes) -> None:
    assert parse_subscription(data) is None
    assert parse_assignment(data) is None


def test_all_topics_of_a_group_are_known_only_if_every_member_can_be_read() -> None:
    assert subscribed_topics([subscription("a"), subscription("b", "a")]) == frozenset({"a", "b"})
    assert subscribed_topics([subscription("a"), b"sticky notes"]) is None


@pytest.mark.parametrize("like", [subscription("t"), COOPERATIVE, b""])
def test_an_assignment_is_read_back_in_the_version_of_its_reader(like: bytes) -> None:
    assigned = {"t": [0, 2], "u": [1]}
    data = format_assignment(assigned, like=like)
    assert data[:2] == (like[:2] or b"\0\0")
    assert parse_assignment(data) == assigned
