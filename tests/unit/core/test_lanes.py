"""Work waits only behind work that waits for the same thing."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from millrace.core.lanes import THREADS_PER_DISK, Lane, Lanes, Waits

NEVER_S = 20.0


def test_a_lane_has_bounded_named_threads_and_tells_what_waits() -> None:
    now = [100.0]
    lane = Lane("sync-0", 2, lambda: now[0])
    gate = threading.Event()
    names: list[str] = []

    def work() -> str:
        names.append(threading.current_thread().name)
        assert gate.wait(NEVER_S)
        return names[-1]

    futures = [lane.submit(work) for _ in range(5)]
    deadline = time.monotonic() + NEVER_S
    while len(names) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    now[0] = 107.0
    assert lane.figures() == ("sync-0", 3, 7.0)
    gate.set()
    assert {future.result(NEVER_S) for future in futures} <= {"sync-0-0", "sync-0-1"}
    while lane.figures().oldest_s and time.monotonic() < deadline:
        time.sleep(0.001)
    assert lane.figures() == ("sync-0", 0, 0.0)


def test_failures_and_cancelled_work_leave_the_thread_to_the_next() -> None:
    lane = Lane("one", 1, time.monotonic)
    gate = threading.Event()
    held = lane.submit(gate.wait, NEVER_S)
    dropped = lane.submit(pytest.fail, "cancelled before it began")
    failing = lane.submit(int, "x")
    assert dropped.cancel()
    gate.set()
    assert held.result(NEVER_S)
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(NEVER_S)
    assert lane.submit(lambda: 7).result(NEVER_S) == 7


def test_a_thread_that_rests_keeps_nothing_of_its_last_work() -> None:
    """Results are megabytes that were read, and open files: nobody would count them, or close them."""

    class Result:
        pass

    lane = Lane("one", 1, time.monotonic)
    result = weakref.ref(lane.submit(Result).result(NEVER_S))
    deadline = time.monotonic() + NEVER_S
    while lane.figures().oldest_s and time.monotonic() < deadline:
        time.sleep(0.001)
    gc.collect()
    assert result() is None


def test_without_threads_to_be_had_work_fails_clearly_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = Lane("poor", 2, time.monotonic)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread for poor"):
            lane.submit(int).result(NEVER_S)
    assert lane.submit(int).result(NEVER_S) == 0


def test_directories_and_kinds_have_lanes_of_their_own() -> None:
    lanes = Lanes(["/a", "/ab/"], time.monotonic)
    assert lanes.of(Waits.SYNC, "/a/t-0") is lanes.of(Waits.SYNC, "/a")
    assert lanes.of(Waits.SYNC, "/ab/t-0") is lanes.of(Waits.SYNC, "/ab")
    distinct = {lanes.of(kind, path) for kind in Waits for path in ("/a", "/ab")}
    assert len(distinct) == 6
    assert lanes.of(Waits.SYNC, "/elsewhere") is None
    assert [figures.name for figures in lanes.figures()][-3:] == ["metadata", "logins", "audit"]
    assert THREADS_PER_DISK > 1
