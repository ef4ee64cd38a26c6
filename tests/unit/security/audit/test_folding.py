"""The first time is told, repeats are counted, and no count is lost or told twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.security.audit.folding import Folding
from tests.unit.security.audit.samples import denied


def test_repeats_are_told_once_with_their_count_when_the_window_ends() -> None:
    folding = Folding(window_ms=60_000)
    what = denied("orders")
    assert not folding.counts(what.key, 1_000)
    assert folding.told(what, 1_000) is None
    assert folding.counts(what.key, 5_000)
    assert folding.counts(what.key, 9_000)
    assert list(folding.ended(60_999)) == []
    (repeated,) = folding.ended(61_000)
    assert (repeated.what, repeated.first_ms, repeated.last_ms, repeated.count) == (what, 5_000, 9_000, 2)
    assert len(folding) == 0
    assert not folding.counts(what.key, 61_000)


def test_what_happens_after_the_window_is_told_and_so_is_what_was_counted_before() -> None:
    folding = Folding(window_ms=10)
    what = denied("orders")
    folding.told(what, 0)
    assert folding.counts(what.key, 5)
    # Nobody has asked for ended windows meanwhile.
    assert not folding.counts(what.key, 30)
    before = folding.told(what, 30)
    assert before is not None
    assert before.count == 1
    assert list(folding.ended(100)) == []


def test_a_clock_that_is_set_back_ends_the_windows() -> None:
    folding = Folding(window_ms=10)
    what = denied("orders")
    folding.told(what, 1_000_000)
    assert folding.counts(what.key, 500)
    (repeated,) = folding.ended(500)
    assert repeated.count == 1


def test_more_than_can_be_counted_is_told_each_time() -> None:
    folding = Folding(keys_max=1)
    folding.told(denied("orders"), 0)
    folding.told(denied("others"), 0)
    assert len(folding) == 1
    assert not folding.counts(denied("others").key, 1)
    assert folding.counts(denied("orders").key, 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=50), st.booleans())
def test_every_happening_is_in_exactly_one_count(steps: list[tuple[str, int]], looks: bool) -> None:
    folding = Folding(window_ms=30, keys_max=2)
    now_ms = 0
    told: dict[str, int] = {}
    for topic, wait_ms in steps:
        now_ms += wait_ms
        what = denied(topic)
        if looks:
            for repeated in folding.ended(now_ms):
                told[repeated.what.resource] = told.get(repeated.what.resource, 0) + repeated.count  # type: ignore[union-attr]
        if not folding.counts(what.key, now_ms):
            before = folding.told(what, now_ms)
            told[topic] = told.get(topic, 0) + 1 + (0 if before is None else before.count)
    for repeated in folding.all():
        told[repeated.what.resource] = told.get(repeated.what.resource, 0) + repeated.count  # type: ignore[union-attr]
    happened = [topic for topic, _ in steps]
    assert told == {topic: happened.count(topic) for topic in set(happened)}
