"""The checks of `millrace doctor`: each looks at one thing a broker needs and says how to mend it.

They change nothing that outlasts them: a probe file and a lock are taken and given back.
"""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final

PYTHON_MIN: Final = (3, 11)
OPEN_FILES_MIN: Final = 1024
OPEN_FILES_GOOD: Final = 16_384
DISK_FREE_MIN_BYTES: Final = 256 * 1024 * 1024
DISK_FREE_GOOD_BYTES: Final = 5 * 1024 * 1024 * 1024
FSYNC_SLOW_MS: Final = 100.0
DIAL_TIMEOUT_S: Final = 3.0
# A clock before this release's year cannot be right.
EARLIEST_YEAR: Final = 2025
LOCK_FILE: Final = ".lock"
_NETWORK_FILESYSTEMS: Final = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "glusterfs")


class Status(StrEnum):
    """How a check came out; FAIL means that a broker would not work."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found, and what to do about it."""

    check: str
    status: Status
    detail: str
    fix: str = ""


def check_python() -> Finding:
    version = platform.python_version()
    if sys.version_info < PYTHON_MIN:
        return Finding(check="python", status=Status.FAIL, detail=version, fix="install Python 3.11 or newer")
    if sys.flags.optimize:
        return Finding(
            check="python",
            status=Status.FAIL,
            detail=f"{version} under -O, which switches assertions off",
            fix="start without -O and without PYTHONOPTIMIZE",
        )
    return Finding(
        check="python", status=Status.OK, detail=f"{version} ({platform.system()} {platform.machine()})"
    )


def check_versions() -> Finding:
    names = ("millrace", "crc32c", "cramjam", "confluent-kafka")
    try:
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    except metadata.PackageNotFoundError as error:
        return Finding(
            check="packages",
            status=Status.FAIL,
            detail=f"{error.name} is missing",
            fix="install millrace again",
        )
    return Finding(check="packages", status=Status.OK, detail=versions)


def check_event_loop() -> Finding:
    try:
        import uvloop

        uvloop.new_event_loop().close()
    except (ImportError, OSError) as error:
        return Finding(check="event loop", status=Status.FAIL, detail=str(error), fix="pip install uvloop")
    return Finding(check="event loop", status=Status.OK, detail=f"uvloop {metadata.version('uvloop')}")


def check_open_files() -> Finding:
    # The broker raises its own limit as far as the system allows.
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return Finding(check="open files", status=Status.OK, detail="without limit")
    detail = f"{allowed:,} at once"
    fix = f"raise the hard limit to {OPEN_FILES_GOOD}: ulimit -Hn, or LimitNOFILE= of the service"
    if allowed < OPEN_FILES_MIN:
        return Finding(check="open files", status=Status.FAIL, detail=detail, fix=fix)
    if allowed < OPEN_FILES_GOOD:
        return Finding(check="open files", status=Status.WARN, detail=detail, fix=fix)
    return Finding(check="open files", status=Status.OK, detail=detail)


def check_clock() -> Finding:
    now = datetime.now(UTC)
    detail = now.isoformat(timespec="seconds")
    if now.year < EARLIEST_YEAR:
        return Finding(
            check="clock",
            status=Status.FAIL,
            detail=detail,
            fix="set the clock; timestamps and retention need it",
        )
    return Finding(check="clock", status=Status.OK, detail=detail)


def check_data_directory(directory: Path) -> Iterator[Finding]:
    """Ownership, lock, space and speed of the directory, or of the parent that it would be made in."""
    name = "data directory"
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        yield Finding(
            check=name,
            status=Status.FAIL,
            detail=f"{existing} is no directory",
            fix="choose another --data-dir",
        )
        return
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        user = f"user {os.geteuid()}"
        yield Finding(
            check=name,
            status=Status.FAIL,
            detail=f"{existing} belongs to user {existing.stat().st_uid}; {user} may not write there",
            fix=f"chown it to {user}, or choose another --data-dir",
        )
        return
    made = "" if existing == directory else f" (will be made in {existing})"
    yield Finding(check=name, status=Status.OK, detail=f"{directory}{made}")
    if existing == directory:
        yield _check_lock(directory)
    yield _check_space(existing)
    yield _check_filesystem(existing)
    yield _check_write_speed(existing)


def check_port(host: str, port: int, *, what: str) -> Finding:
    shown = f"{host or '*'}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror as error:
            return Finding(
                check=what,
                status=Status.FAIL,
                detail=f"{shown}: {error.strerror}",
                fix="use an address of this machine",
            )
        except PermissionError:
            return Finding(
                check=what,
                status=Status.FAIL,
                detail=f"{shown} needs privileges",
                fix="choose a port from 1024 up",
            )
        except OSError as error:
            return Finding(
                check=what,
                status=Status.FAIL,
                detail=f"{shown}: {error.strerror}",
                fix=f"stop what listens there (ss -ltnp 'sport = :{port}'), or choose another address",
            )
    return Finding(check=what, status=Status.OK, detail=f"{shown} is free")


def check_advertised(host: str, port: int, *, listen_port: int) -> Finding:
    """Whether clients can find the way: the name resolves, and leads here or to something that answers."""
    name = "advertised address"
    shown = f"{host}:{port}"
    if host in ("", "0.0.0.0", "::"):
        return Finding(
            check=name,
            status=Status.FAIL,
            detail=f"{shown} is an address that nobody can dial",
            fix="set advertised.listeners to a host name that clients resolve",
        )
    try:
        addresses = [entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        return Finding(
            check=name,
            status=Status.FAIL,
            detail=f"{shown}: {error.strerror}",
            fix="use a name that clients resolve",
        )
    if any(_is_local(str(address)) for address in addresses):
        return _judge_local(name, shown, port, listen_port)
    try:
        socket.create_connection((host, port), timeout=DIAL_TIMEOUT_S).close()
    except OSError as error:
        # The broker is not running yet, so a proxy or port mapping may well refuse at this moment.
        return Finding(
            check=name,
            status=Status.WARN,
            detail=f"{shown} is not this machine, and dialling it gives: {error.strerror or error}",
            fix="make sure that a proxy or port mapping leads from there to this broker",
        )
    return Finding(check=name, status=Status.OK, detail=f"{shown} can be dialled")


def _judge_local(name: str, shown: str, port: int, listen_port: int) -> Finding:
    if port != listen_port:
        return Finding(
            check=name,
            status=Status.WARN,
            detail=f"{shown} is this machine, but the broker listens on port {listen_port}",
            fix="correct advertised.listeners, unless a port mapping leads there",
        )
    return Finding(check=name, status=Status.OK, detail=f"{shown} is this machine")


def _is_local(address: str) -> bool:
    """Whether this machine has the address: no other can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _check_lock(directory: Path) -> Finding:
    name = "data lock"
    lock = directory / LOCK_FILE
    if not lock.exists():
        return Finding(check=name, status=Status.OK, detail="no broker has used the directory yet")
    try:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError:
        return Finding(
            check=name,
            status=Status.FAIL,
            detail=f"{lock} cannot be opened",
            fix="chown the directory to this user",
        )
    except OSError:
        return Finding(
            check=name,
            status=Status.FAIL,
            detail="another broker is using the directory",
            fix="stop that broker, or choose another --data-dir",
        )
    return Finding(check=name, status=Status.OK, detail="no broker is using the directory")


def _check_space(directory: Path) -> Finding:
    name = "disk space"
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    detail = f"{free / 2**30:.1f} GiB free of {space.f_blocks * space.f_frsize / 2**30:.1f} GiB"
    fix = "free some space, or choose a --data-dir on a larger disk"
    if free < DISK_FREE_MIN_BYTES or (space.f_files and space.f_favail < 1000):
        return Finding(check=name, status=Status.FAIL, detail=detail, fix=fix)
    if free < DISK_FREE_GOOD_BYTES:
        return Finding(check=name, status=Status.WARN, detail=detail, fix=fix)
    return Finding(check=name, status=Status.OK, detail=detail)


def _check_filesystem(directory: Path) -> Finding:
    kind = _filesystem_of(directory)
    if kind.startswith(_NETWORK_FILESYSTEMS):
        return Finding(
            check="filesystem",
            status=Status.WARN,
            detail=f"{kind}, where locks and flushes may not hold what they promise",
            fix="use a local disk with ext4 or xfs",
        )
    if kind == "tmpfs":
        return Finding(
            check="filesystem",
            status=Status.WARN,
            detail="tmpfs: everything is lost when the machine restarts",
            fix="use a --data-dir on a disk",
        )
    return Finding(check="filesystem", status=Status.OK, detail=kind or "unknown kind")


def _filesystem_of(directory: Path) -> str:
    """The kind of the mount that holds the directory, from the kernel's table; empty where there is none."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    resolved = directory.resolve()
    best, kind = "", ""
    for line in lines:
        _, mount_point, mount_kind, *_ = line.split()
        if resolved.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, mount_kind
    return kind


def _check_write_speed(directory: Path) -> Finding:
    """One small write forced to the disk: what a producer waits for with flush.messages=1."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".millrace-doctor-") as probe:
            probe.write(bytes(4096))
            probe.flush()
            started = time.perf_counter()
            os.fsync(probe.fileno())
            elapsed_ms = (time.perf_counter() - started) * 1000
    except OSError as error:
        return Finding(
            check="disk flush", status=Status.FAIL, detail=str(error.strerror), fix="choose a healthy disk"
        )
    detail = f"{elapsed_ms:.1f} ms"
    if elapsed_ms > FSYNC_SLOW_MS:
        return Finding(check="disk flush", status=Status.WARN, detail=detail, fix="a slow disk: use an SSD")
    return Finding(check="disk flush", status=Status.OK, detail=detail)
