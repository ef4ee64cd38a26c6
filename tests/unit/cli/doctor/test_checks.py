"""What the doctor looks at: each check finds the fault that it is there for, and says how to mend it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

from millrace.cli.doctor import checks
from millrace.cli.doctor.checks import Finding, Status
from millrace.core.override import override


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_this_machine_can_run_the_tests_so_its_python_is_fine() -> None:
    for finding in (
        checks.check_python(),
        checks.check_versions(),
        checks.check_event_loop(),
        checks.check_clock(),
    ):
        assert finding.status is Status.OK, finding


def test_few_open_files_are_a_warning_and_too_few_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, status in ((256, Status.FAIL), (4096, Status.WARN), (100_000, Status.OK), (-1, Status.OK)):
        monkeypatch.setattr(
            "millrace.cli.doctor.checks.resource.getrlimit", lambda _which, limit=limit: (100, limit)
        )
        finding = checks.check_open_files()
        assert finding.status is status
        assert ("ulimit" in finding.fix) == (status is not Status.OK)


def test_a_clock_in_the_past_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(datetime):
        @classmethod
        @override
        def now(cls, tz: tzinfo | None = None) -> Early:
            return cls(1970, 1, 1, tzinfo=tz)

    monkeypatch.setattr(checks, "datetime", Early)
    assert checks.check_clock().status is Status.FAIL


def test_a_directory_that_does_not_exist_yet_is_fine_if_it_can_be_made(tmp_path: Path) -> None:
    findings = by_name(list(checks.check_data_directory(tmp_path / "new" / "data")))
    assert findings["data directory"].status is Status.OK
    assert "will be made" in findings["data directory"].detail
    assert not (tmp_path / "new").exists()


def test_a_file_in_place_of_the_directory_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = checks.check_data_directory(tmp_path / "file")
    assert finding.status is Status.FAIL


def test_a_directory_of_somebody_else_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.cli.doctor.checks.os.access", lambda *_arguments: False)
    (finding,) = checks.check_data_directory(tmp_path)
    assert finding.status is Status.FAIL
    assert "chown" in finding.fix


def test_a_running_broker_is_seen_by_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / checks.LOCK_FILE
    lock.touch()
    assert by_name(list(checks.check_data_directory(tmp_path)))["data lock"].status is Status.OK
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        finding = by_name(list(checks.check_data_directory(tmp_path)))["data lock"]
    assert finding.status is Status.FAIL
    assert "stop that broker" in finding.fix


def test_a_full_disk_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    values = list(real)
    values[4] = 1  # f_bavail: one free block
    monkeypatch.setattr("millrace.cli.doctor.checks.os.statvfs", lambda _path: os.statvfs_result(values))
    assert by_name(list(checks.check_data_directory(tmp_path)))["disk space"].status is Status.FAIL


def test_a_slow_flush_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0.0, 0.5))
    monkeypatch.setattr("millrace.cli.doctor.checks.time.perf_counter", lambda: next(moments))
    assert by_name(list(checks.check_data_directory(tmp_path)))["disk flush"].status is Status.WARN
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind, status", [("nfs4", Status.WARN), ("tmpfs", Status.WARN), ("ext4", Status.OK)])
def test_the_kind_of_file_system_is_judged(
    kind: str, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_filesystem_of", lambda _directory: kind)
    assert by_name(list(checks.check_data_directory(tmp_path)))["filesystem"].status is status


def test_a_port_in_use_is_a_failure() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert checks.check_port("127.0.0.1", port, what="listener").status is Status.FAIL
    assert checks.check_port("127.0.0.1", 0, what="listener").status is Status.OK


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    # TEST-NET-1: reserved for documentation, so it is nobody's address.
    assert checks.check_port("192.0.2.1", 9092, what="listener").status is Status.FAIL


@pytest.mark.parametrize(
    "host, port, status",
    [
        ("127.0.0.1", 9092, Status.OK),
        ("127.0.0.1", 9093, Status.WARN),
        ("0.0.0.0", 9092, Status.FAIL),
        ("", 9092, Status.FAIL),
        ("no-such-host.invalid", 9092, Status.FAIL),
    ],
)
def test_an_advertised_address_must_lead_here(host: str, port: int, status: Status) -> None:
    assert checks.check_advertised(host, port, listen_port=9092).status is status


@pytest.mark.timed
def test_an_advertised_address_elsewhere_that_does_not_answer_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "DIAL_TIMEOUT_S", 0.05)
    started = time.monotonic()
    finding = checks.check_advertised("192.0.2.1", 9092, listen_port=9092)
    assert finding.status is Status.WARN
    assert time.monotonic() - started < 2
