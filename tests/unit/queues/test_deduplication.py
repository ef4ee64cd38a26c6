"""The ids of a partition, against a list of all that was ever stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import TopicPartition
from millrace.queues.deduplication import EXPIRIES_IN_WINDOW, IdsNotLoaded, StoredIds

WINDOW = 100


@given(
    batches=st.lists(
        st.tuples(st.integers(0, 60), st.lists(st.integers(0, 12), max_size=5)), min_size=1, max_size=40
    )
)
def test_an_id_is_stored_once_within_the_window(batches: list[tuple[int, list[int]]]) -> None:
    ids = StoredIds()
    stored: list[tuple[int, int]] = []
    now = 1_000
    count = 0
    for number, (pause, hashes) in enumerate(batches):
        now += pause
        count -= ids.expire(now - WINDOW)
        expected = []
        fresh: list[int] = []
        for place, hashed in enumerate(hashes):
            if hashed in fresh or any(each == hashed and now - at <= WINDOW for at, each in stored):
                expected.append(place)
            else:
                fresh.append(hashed)
        assert ids.repeated(enumerate(hashes), now - WINDOW) == expected
        count += ids.add(fresh, time_ms=now, base_offset=number)
        stored += [(now, hashed) for hashed in fresh]
        assert [ids.batch_of(hashed) for hashed in fresh] == [number] * len(fresh)
        assert len(ids) == count


def test_ids_leave_the_memory_when_they_are_old() -> None:
    ids = StoredIds()
    for now in range(0, 1_000, 10):
        ids.expire(now - WINDOW)
        ids.add([now], time_ms=now, base_offset=now)
        assert len(ids) <= WINDOW // 10 + WINDOW // EXPIRIES_IN_WINDOW + 2
    left = len(ids)
    assert ids.expire(5_000) == left > 0
    assert len(ids) == 0
    assert ids.batch_of(990) is None


def test_the_oldest_go_first_when_there_is_no_room() -> None:
    ids = StoredIds()
    ids.add([1, 2, 3], time_ms=10, base_offset=0)
    ids.add([4], time_ms=20, base_offset=3)
    assert ids.drop_oldest(2) == 2
    assert ids.repeated(enumerate([1, 2, 3, 4]), 0) == [2, 3]
    assert ids.drop_oldest(10) == 2


def test_a_clock_that_goes_back_forgets_nothing_early() -> None:
    ids = StoredIds()
    ids.add([1], time_ms=500, base_offset=0)
    ids.add([2], time_ms=100, base_offset=1)
    assert ids.repeated([(0, 1), (1, 2)], 400) == [0, 1]
    assert ids.expire(501) == 2


def test_the_error_says_what_to_do() -> None:
    assert "try again" in str(IdsNotLoaded(TopicPartition("orders", 3)))
