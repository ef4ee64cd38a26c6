"""Sync a whole file system with one call, where the system can and tells of errors.

An `fsync` for each of a thousand files makes the journal of the file system commit a thousand times: measured
on ext4, 2,000 files that had a kilobyte appended to each took 5.7 s one by one and 0.04 to 0.12 s together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable
from typing import Final

_TELLS_ERRORS_FROM: Final = (5, 8)
"""Before this version of Linux, syncfs kept silent about what could not be written."""


def _find_syncfs() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if release is None or (int(release[1]), int(release[2])) < _TELLS_ERRORS_FROM:
        return None
    try:
        syncfs: Callable[[int], int] = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    return syncfs


_syncfs: Final = _find_syncfs()
IS_POSSIBLE: Final = _syncfs is not None


class OpenDisk:
    """A directory that is held open, to sync all of its file system.

    The system counts the errors of a disk, and each open file remembers up to which one it was told. A file
    that is opened later begins behind the errors that anybody was told of before: if an administrator syncs
    the same disk with `sync -f`, he is told of an error, and a process that opens the directory afresh for
    each sync never is. So it is opened once, before the first write, and hears of every error since. (Linux
    calls `errseq_sample` when a file is opened and `errseq_check_and_advance` in syncfs.)
    """

    __slots__ = ("_descriptor",)

    def __init__(self, path: str) -> None:
        self._descriptor: Final = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Return when all that was written to the file system is on its disk; OSError if not."""
        assert _syncfs is not None, "ask IS_POSSIBLE first"
        if _syncfs(self._descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)
