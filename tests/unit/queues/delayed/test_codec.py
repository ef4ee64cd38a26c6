"""The records of the store come back as they were written; what is no such record is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import TopicId
from millrace.queues.delayed.codec import (
    MOVED,
    REPEATED,
    Cancelled,
    Done,
    Intent,
    MalformedRecord,
    MessageId,
    Settled,
    StoredMessage,
    Target,
    decode,
    encode_added,
    encode_done,
    encode_intent,
    encode_moved,
    encode_settled,
    id_hash,
    key_hash,
    message_parts,
    store_key,
)
from tests.unit.queues.delayed.messages import TOPIC_ID, cancellation, record, stored

ENTRIES = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62))).map(tuple)


def test_a_message_keeps_its_key_value_and_headers_and_says_when_it_was_produced() -> None:
    found = stored(record(7, 5_000, replaces=3))
    assert found.id == MessageId(TOPIC_ID, 0, 7)
    assert (found.due_ms, found.produced_ms, found.replaces, found.flags) == (5_000, 1_000, 3, 0)
    assert message_parts(found.message) == (
        b"k7",
        b"v",
        (("colour", b"red"), ("empty", None), ("millrace-scheduled-at", b"1000")),
    )
    assert message_parts(stored(record(7, value=None)).message)[1] is None


def test_a_second_attempt_says_so() -> None:
    found = decode(*encode_added(record(7), is_repeated=True))
    assert isinstance(found, StoredMessage)
    assert found.flags == REPEATED
    assert stored(record(7, is_repeated=True)).flags == REPEATED


def test_a_moved_message_remembers_where_it_was_first_and_replaces_nobody_again() -> None:
    once = decode(*encode_moved(stored(record(7, replaces=3)), 40))
    assert isinstance(once, StoredMessage)
    assert (once.first_offset, once.replaces, once.flags) == (40, -1, MOVED)
    twice = decode(*encode_moved(once, 90))
    assert isinstance(twice, StoredMessage)
    assert twice.first_offset == 40


def test_a_cancellation_names_the_message_that_goes() -> None:
    assert decode(*encode_added(cancellation(7))) == Cancelled(MessageId(TOPIC_ID, 0, 7))


@given(ENTRIES, st.booleans())
def test_intents_and_settlements_come_back(entries: tuple[tuple[int, int], ...], is_again: bool) -> None:
    intent = Intent(Target(TOPIC_ID, 3), 2**40, 12, 5, is_again, entries)
    assert decode(*encode_intent(intent)) == intent
    assert decode(*encode_settled(entries)) == Settled(entries)


@given(st.lists(st.integers(0, 2**62)))
def test_the_word_of_what_is_done_comes_back(intents: list[int]) -> None:
    assert decode(*encode_done(intents)) == Done(tuple(intents))


def test_a_later_version_or_kind_is_nothing_that_is_known() -> None:
    key, value = encode_added(record(7))
    assert decode(b"\0\1" + key[2:], value) is None
    assert decode(b"\x63\0", b"") is None


@pytest.mark.parametrize("key, value", [(None, b""), (b"\0", b""), (b"\0\0", b""), (b"\2\0", b"x")])
def test_what_is_no_record_of_the_store_is_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode(key, value)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_do_more_harm_than_that(key: bytes, value: bytes) -> None:
    try:
        found = decode(key, value)
        if isinstance(found, StoredMessage):
            message_parts(found.message)
    except MalformedRecord:
        pass


def test_an_id_has_one_hash_and_a_target_one_place() -> None:
    message = record(7)
    key, _ = encode_added(message)
    assert id_hash(MessageId(TOPIC_ID, 0, 7)) == key_hash(key)
    assert id_hash(MessageId(TOPIC_ID, 0, 8)) != key_hash(key)
    assert store_key(TOPIC_ID, 1) != store_key(TopicId(bytes(16)), 1)
