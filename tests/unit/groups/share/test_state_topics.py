"""Which partitions have state, through all that can happen to it."""

from __future__ import annotations

from millrace.core.ids import TopicId
from millrace.groups.share.state_topics import UNNAMED, NamedPartitions, StateTopics
from millrace.wire.messages.share_group_records import ShareGroupStatePartitionMetadataValue

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
EMPTY = StateTopics({}, {}, {})


def named(name: str, *partitions: int) -> NamedPartitions:
    return NamedPartitions(name, frozenset(partitions))


BEGUN = EMPTY.begun({A: named("a", 0, 1), B: named("b", 0)})


def test_state_is_begun_and_done_by_partitions() -> None:
    half = BEGUN.done({A: frozenset({1}), B: frozenset({0})})
    assert half.initializing == {A: named("a", 0)}
    assert half.initialized == {A: named("a", 1), B: named("b", 0)}
    assert half.assignable() == {A: frozenset({1}), B: frozenset({0})}
    whole = half.done({A: frozenset({0})})
    assert (whole.initializing, whole.assignable()) == ({}, {A: frozenset({0, 1}), B: frozenset({0})})


def test_state_that_nobody_began_has_no_name() -> None:
    assert EMPTY.done({A: frozenset({0})}).initialized == {A: named(UNNAMED, 0)}


def test_what_failed_is_forgotten() -> None:
    assert BEGUN.failed({A: frozenset({0, 1, 2})}).initializing == {B: named("b", 0)}


def test_state_is_deleted_by_topics() -> None:
    leaving = BEGUN.done({A: frozenset({0})}).leaving([A])
    assert (leaving.initializing, leaving.initialized) == ({B: named("b", 0)}, {})
    assert leaving.deleting == {A: "a"}
    assert leaving.begun({A: named("a", 0)}).deleting == {}, "it is wanted again"
    assert leaving.without([A, B]) == EMPTY


def test_a_record_says_it_all() -> None:
    state = BEGUN.done({A: frozenset({0})}).leaving([B])
    value = state.record("g").value
    assert isinstance(value, ShareGroupStatePartitionMetadataValue)
    assert StateTopics.from_value(value) == state
