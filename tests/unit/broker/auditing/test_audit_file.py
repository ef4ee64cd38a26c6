"""Lines reach the file whole or not at all, and the files stay within their bound."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.broker.auditing.audit_file import AuditFile, AuditFileSettings, append
from tests.unit.security.audit.samples import denied, event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def settings(path: Path, *, bytes_max: int = 1_000_000, files_max: int = 3) -> AuditFileSettings:
    return AuditFileSettings(path=str(path), bytes_max=bytes_max, files_max=files_max)


def test_events_are_appended_as_lines(path: Path) -> None:
    async def scenario() -> None:
        file = AuditFile(settings(path), None)
        await file.write([event(denied("a")), event(denied("b"))])
        await file.write([event(denied("c"))])
        lines = path.read_text().splitlines()
        assert [line.split(":LITERAL:")[1][0] for line in lines] == ["a", "b", "c"]
        assert path.stat().st_mode & 0o777 == 0o600

    asyncio.run(scenario())


def test_a_file_that_is_full_is_set_aside_and_the_oldest_goes(path: Path) -> None:
    small = settings(path, bytes_max=4, files_max=3)
    for number in range(6):
        append(small, f"<{number}>\n".encode())
    assert {each.name: each.read_text() for each in path.parent.iterdir()} == {
        "audit.log": "<5>\n",
        "audit.log.1": "<4>\n",
        "audit.log.2": "<3>\n",
    }


def test_with_one_file_the_old_lines_go(path: Path) -> None:
    one = settings(path, bytes_max=4, files_max=1)
    append(one, b"<0>\n")
    append(one, b"<1>\n")
    assert [each.name for each in path.parent.iterdir()] == ["audit.log"]
    assert path.read_text() == "<1>\n"


def short_of_space(after_bytes: int) -> Callable[[int, bytes], int]:
    real = os.write
    left = [after_bytes]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "no space left on device")
        written = real(descriptor, data[: left[0]])
        left[0] -= written
        return written

    return write


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(settings(path), b"before\n")
    monkeypatch.setattr(os, "write", short_of_space(4))
    with pytest.raises(OSError, match="no space left"):
        append(settings(path), b"a line too long\n")
    assert path.read_text() == "before\n"
    monkeypatch.undo()
    append(settings(path), b"a line too long\n")
    assert path.read_text() == "before\na line too long\n"


def test_a_directory_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(FileNotFoundError):
            await AuditFile(settings(tmp_path / "none" / "audit.log"), None).write([event(denied("a"))])

    asyncio.run(scenario())
