"""One sync for a whole file system: only where the system can, and errors are told."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from pathlib import Path

import pytest

from millrace.log.disk import whole_disk_sync
from millrace.log.disk.whole_disk_sync import OpenDisk


@pytest.mark.parametrize("release", ["5.7.19-generic", "4.19.0", "3.10.0-1160.el7", "unknown"])
def test_a_system_that_keeps_silent_about_errors_is_not_used(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "release", lambda: release)
    assert whole_disk_sync._find_syncfs() is None


def test_other_systems_than_linux_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "release", lambda: "23.1.0")
    assert whole_disk_sync._find_syncfs() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="syncfs is a call of Linux")
@pytest.mark.parametrize("release", ["5.8.0", "5.10.1", "6.1.0-18-amd64", "10.0.1"])
def test_a_system_that_tells_of_errors_is_used(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert whole_disk_sync._find_syncfs() is not None


def test_the_directory_that_was_opened_at_first_is_synced_each_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[tuple[int, int]] = []

    def syncfs(descriptor: int) -> int:
        synced.append((descriptor, os.fstat(descriptor).st_ino))
        return 0

    monkeypatch.setattr(whole_disk_sync, "_syncfs", syncfs)
    disk = OpenDisk(str(tmp_path))
    disk.sync()
    disk.sync()
    assert synced[0] == synced[1]
    assert synced[0][1] == tmp_path.stat().st_ino


def test_what_could_not_be_written_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def syncfs(_descriptor: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(whole_disk_sync, "_syncfs", syncfs)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as failed:
        OpenDisk(str(tmp_path)).sync()
    assert failed.value.errno == errno.EIO


def test_the_directory_is_let_go_with_its_owner(tmp_path: Path) -> None:
    disk = OpenDisk(str(tmp_path))
    descriptor = disk._descriptor
    os.fstat(descriptor)
    del disk
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(descriptor)


def test_a_directory_that_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OpenDisk(str(tmp_path / "nothing"))
