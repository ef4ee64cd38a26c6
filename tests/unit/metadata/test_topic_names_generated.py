"""Which names a topic may have: those that Kafka allows, and a directory can have."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.metadata.errors import InvalidTopicName
from millrace.metadata.topic_names import INTERNAL_TOPICS, check_topic_name, is_internal

LEGAL = string.ascii_letters + string.digits + "._-"


@given(st.text(alphabet=LEGAL, min_size=1, max_size=249).filter(lambda name: name not in (".", "..")))
def test_letters_digits_dots_underscores_and_dashes_are_allowed(name: str) -> None:
    check_topic_name(name)


@given(
    st.text(alphabet=LEGAL, max_size=5), st.characters().filter(lambda one: one not in LEGAL), st.text(LEGAL)
)
def test_any_other_character_is_refused_wherever_it_stands(before: str, odd: str, after: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(before + odd + after)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("", "it is empty"),
        (".", "it means a directory"),
        ("..", "it means a directory"),
        ("t" * 250, "it has 250 characters, the limit is 249"),
        ("a/b", "only ASCII letters"),
        ("tópico", "only ASCII letters"),
        ("line\n", "only ASCII letters"),
    ],
)
def test_a_refusal_says_why(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        check_topic_name(name)


def test_internal_topics_have_legal_names_and_no_others_are_internal() -> None:
    for name in INTERNAL_TOPICS:
        check_topic_name(name)
        assert is_internal(name)
    assert not is_internal("__consumer_offset")
    assert not is_internal("consumer_offsets")
