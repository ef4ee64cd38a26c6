"""What the operating system refuses for the moment must not be taken for a broken disk, which is fenced."""

from __future__ import annotations

import errno
import os

import pytest

from millrace.log.disk.volume import storage_error
from millrace.log.errors import DiskFailed, StorageError, TooLittleMemory, TooManyOpenFiles


@pytest.mark.parametrize(
    "code, operation, expected",
    [
        (errno.EMFILE, "open", TooManyOpenFiles),
        (errno.ENFILE, "open", TooManyOpenFiles),
        (errno.ENOMEM, "open", TooLittleMemory),
        (errno.ENOMEM, "write", TooLittleMemory),
        (errno.EAGAIN, "read", TooLittleMemory),
        (errno.EIO, "write", DiskFailed),
        # The kernel may have counted the pages as written: nobody can tell any more.
        (errno.ENOMEM, "sync", DiskFailed),
    ],
)
def test_shortages_pass_and_failed_syncs_do_not(
    code: int, operation: str, expected: type[StorageError]
) -> None:
    assert type(storage_error(OSError(code, os.strerror(code)), operation, "/x")) is expected
