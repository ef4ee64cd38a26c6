"""Topic ids as text, and what tells a damaged one from another one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millrace.core.ids import TopicId, TopicPartition, format_topic_id, is_one_bit_off, parse_topic_id

TOPIC_IDS = st.binary(min_size=16, max_size=16).map(TopicId)


def test_a_partition_is_written_as_its_directory() -> None:
    assert str(TopicPartition("a-topic", 3)) == "a-topic-3"
    assert f"{TopicPartition('t', 0)}" == "t-0"


def test_the_text_of_an_id_is_that_of_kafka() -> None:
    # Kafka's Uuid.toString(): URL-safe base64 without padding.
    assert format_topic_id(TopicId(bytes(16))) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert format_topic_id(TopicId(b"\xfb\xff" * 8)) == "-__7__v_-__7__v_-__7_w"


@given(TOPIC_IDS)
def test_what_is_written_is_read_again(topic_id: TopicId) -> None:
    text = format_topic_id(topic_id)
    assert len(text) == 22
    assert parse_topic_id(text) == topic_id


@given(st.text(alphabet=st.characters(max_codepoint=0x7F), max_size=30) | st.text(max_size=30))
def test_any_text_is_one_id_or_refused(text: str) -> None:
    try:
        topic_id = parse_topic_id(text)
    except ValueError:
        return
    assert format_topic_id(topic_id) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAAAAAAAAAAAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAAA==",
        # The last two say the same bytes as texts that are ids: in bits nobody reads, in the other alphabet.
        "AAAAAAAAAAAAAAAAAAAAAB",
        base64.b64encode(b"\xfb\xff" * 8).decode().rstrip("="),
    ],
)
def test_no_second_text_stands_for_an_id(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_topic_id(text)


@given(TOPIC_IDS, st.integers(0, 21), st.integers(0, 6))
def test_an_id_is_recognised_behind_one_flipped_bit_of_its_text(
    topic_id: TopicId, place: int, bit: int
) -> None:
    text = format_topic_id(topic_id)
    damaged = text[:place] + chr(ord(text[place]) ^ (1 << bit)) + text[place + 1 :]
    try:
        stored = parse_topic_id(damaged)
    except ValueError:
        assume(False)
        raise
    assert is_one_bit_off(stored, topic_id)
    assert is_one_bit_off(topic_id, stored)


@given(TOPIC_IDS, TOPIC_IDS)
def test_ids_that_are_equal_or_differ_in_two_characters_are_no_damage(one: TopicId, other: TopicId) -> None:
    assert not is_one_bit_off(one, one)
    differing = [a for a, b in zip(format_topic_id(one), format_topic_id(other), strict=True) if a != b]
    if len(differing) > 1:
        assert not is_one_bit_off(one, other)
