"""Patterns match whole names, as RE2 reads them, and never look at a name twice."""

from __future__ import annotations

import pytest

from millrace.core.patterns import NAMES_PER_STEP, InvalidPattern, TopicPattern, TopicPatterns, check_pattern


def resolve(pattern: TopicPattern, names: list[str]) -> frozenset[str]:
    (found,) = (each for each in pattern.resolve(names) if each is not None)
    return found


def test_a_pattern_matches_whole_names() -> None:
    pattern = TopicPattern("orders-[0-9]+")
    assert resolve(pattern, ["orders-1", "orders-", "my-orders-1", "orders-12"]) == {"orders-1", "orders-12"}
    assert resolve(TopicPattern("^a|b$"), ["a", "b", "ab"]) == {"a", "b"}


@pytest.mark.parametrize("text", ["(", "[a", "(?=look)", r"(a)\\1)", "a" * 5_000, "(((a{100}){100}){100})"])
def test_what_re2_does_not_take_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(InvalidPattern):
        check_pattern(text)


def test_topics_that_come_and_go_are_followed() -> None:
    pattern = TopicPatterns().get("a.*")
    assert resolve(pattern, ["a1", "b"]) == {"a1"}
    assert resolve(pattern, ["b", "a2"]) == {"a2"}


def test_many_names_leave_room_for_other_work() -> None:
    names = [f"t{number}" for number in range(3 * NAMES_PER_STEP + 5)]
    pattern = TopicPattern("t1.*")
    assert list(pattern.resolve(names)).count(None) == 3
    assert list(pattern.resolve([*names, "new"])).count(None) == 0


def test_expressions_that_stop_others_take_no_time_here() -> None:
    assert resolve(TopicPattern("(a+)+b"), ["a" * 240]) == frozenset()
