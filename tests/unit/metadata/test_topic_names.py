"""Which names a topic may have."""

from __future__ import annotations

import pytest

from millrace.core.limits import TOPIC_NAME_LENGTH_MAX
from millrace.metadata.errors import InvalidTopicName
from millrace.metadata.topic_names import check_topic_name, is_internal


@pytest.mark.parametrize("name", ["a", "orders.2024-Q1_eu", "...", "_", "a" * TOPIC_NAME_LENGTH_MAX])
def test_names_that_kafka_takes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("", "empty"),
        (".", "directory"),
        ("..", "directory"),
        ("a" * (TOPIC_NAME_LENGTH_MAX + 1), "the limit is"),
        ("a/b", "only ASCII"),
        ("größe", "only ASCII"),
        ("a\n", "only ASCII"),
        ("٣", "only ASCII"),
    ],
)
def test_names_that_no_topic_may_have(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        check_topic_name(name)


def test_the_coordinators_own_their_topics() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("__consumer_offsets2")
