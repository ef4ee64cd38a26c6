"""The names that pipelines take for topics are those that a broker takes."""

from __future__ import annotations

import pytest

from millrace.metadata.errors import InvalidTopicName
from millrace.metadata.topic_names import check_topic_name
from millrace.pipeline.topic_names import is_topic_name


@pytest.mark.parametrize("name", ["orders", "a", "Orders_2.v-1", "...", "x" * 249])
def test_names_that_a_broker_takes(name: str) -> None:
    check_topic_name(name)
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "orders\n", "x" * 250])
def test_names_that_a_broker_refuses(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)
    assert not is_topic_name(name)
