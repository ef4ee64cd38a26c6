"""The worker process: a job and its reply, its pace, and its end with its parent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.log.cleaning import worker
from millrace.log.cleaning.compaction import CompactionJob, SegmentToClean
from millrace.log.cleaning.worker import Pacer, run_job
from millrace.log.cleaning.worker_messages import JobFailed, decode_reply, encode_job
from millrace.wire.records import Record, build_batch
from tests.unit.log.support import NOW_MS
from tests.unit.log.unsynced import UnsyncedVolume

MEGABYTE = 1 << 20


class FakeTime:
    """A clock that goes on only while somebody waits for input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.waits: list[float] = []
        self.is_readable = False
        monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(worker, "select", SimpleNamespace(select=self._select))

    def _select(
        self, read: list[int], _write: list[int], _errors: list[int], timeout: float
    ) -> tuple[list[int], list[int], list[int]]:
        self.waits.append(timeout)
        self.now += timeout
        return (read if self.is_readable else []), [], []


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return FakeTime(monkeypatch)


@pytest.fixture
def parent() -> Iterator[tuple[int, int]]:
    """The pipe from the parent: the worker's end of it and the parent's."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def job(directory: Path) -> CompactionJob:
    """Three records of two keys."""
    records = [Record(offset, NOW_MS, b"k%d" % (offset % 2), b"v%d" % offset) for offset in range(3)]
    data = build_batch(records)
    (directory / f"{0:020}.log").write_bytes(data)
    return CompactionJob(
        directory=str(directory),
        segments=(SegmentToClean(base_offset=0, size_bytes=len(data)),),
        first_dirty_offset=0,
        end_offset=3,
        now_ms=NOW_MS,
        delete_retention_ms=0,
        segment_bytes=1 << 20,
        segment_index_bytes=1 << 20,
        index_interval_bytes=4096,
        max_decompressed_message_bytes=1 << 20,
        map_bytes_max=1 << 20,
    )


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "DiskVolume", UnsyncedVolume)


def test_a_job_is_carried_out_and_answered(tmp_path: Path, parent: tuple[int, int]) -> None:
    reply = run_job(encode_job(job(tmp_path)), parent[0])
    result = decode_reply(reply)
    assert (result.clean_offset, result.stats.keys) == (3, 2)
    (group,) = result.groups
    assert group.replaces == (0,)
    assert (tmp_path / f"{0:020}.log.cleaned").stat().st_size == group.cleaned.size_bytes > 0


def test_a_failure_is_the_reply_and_not_the_end_of_the_worker(
    tmp_path: Path, parent: tuple[int, int]
) -> None:
    wanted = job(tmp_path)
    (tmp_path / f"{0:020}.log").unlink()
    with pytest.raises(JobFailed, match="FileMissing"):
        decode_reply(run_job(encode_job(wanted), parent[0]))
    with pytest.raises(JobFailed, match="JSONDecodeError"):
        decode_reply(run_job(b"no job\n", parent[0]))


def test_bytes_without_a_limit_are_not_waited_for(fake: FakeTime) -> None:
    pace = Pacer(float("inf"), 0)
    for _ in range(10):
        pace(MEGABYTE // 2)
    assert fake.now == 50.0
    assert fake.waits == [0.0] * 5, "it looks for its parent once a megabyte"


def test_a_job_stays_under_its_bytes_per_second(fake: FakeTime) -> None:
    pace = Pacer(MEGABYTE, 0)
    for _ in range(20):
        pace(MEGABYTE // 4)
    assert fake.now - 50.0 == pytest.approx(5.0, abs=0.01)


def test_short_waits_are_saved_up(fake: FakeTime) -> None:
    pace = Pacer(MEGABYTE, 0)
    pace(1000)
    assert fake.waits == []


def test_whatever_comes_from_the_parent_during_a_job_ends_the_worker(fake: FakeTime) -> None:
    pace = Pacer(float("inf"), 0)
    fake.is_readable = True
    pace(MEGABYTE - 1)
    with pytest.raises(SystemExit):
        pace(1)


def test_the_end_of_the_parent_ends_the_worker() -> None:
    read_end, write_end = os.pipe()
    try:
        os.close(write_end)
        with pytest.raises(SystemExit):
            Pacer(float("inf"), read_end)(MEGABYTE)
    finally:
        os.close(read_end)
