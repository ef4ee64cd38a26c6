"""The audit's log file: lines as Kafka's authorizer writes them, in files of a bounded size.

The functions run in a thread, and are handed all that they need. What could not be written whole is taken
back, so that a disk that is full leaves no half line behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from millrace.security.audit.events import Event
from millrace.security.audit.lines import line_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFileSettings:
    """Where the lines go, and how many of them are kept."""

    path: str
    bytes_max: int
    """A file that has grown to this is set aside, as `path.1`, and what was there before as `path.2`."""
    files_max: int
    """How many files there are, with the one that is written."""


class AuditFile:
    """Appends events to the file, away from the loop."""

    def __init__(self, settings: AuditFileSettings, lane: Executor | None) -> None:
        self._settings = settings
        self._lane = lane

    async def write(self, events: Sequence[Event]) -> None:
        """Write these events; raises OSError, and has then written none of them."""
        data = "".join(line_of(event) + "\n" for event in events).encode()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._lane, append, self._settings, data)


def append(settings: AuditFileSettings, data: bytes) -> None:
    """Append whole lines; raises OSError, and has then changed nothing."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize(settings.path) >= settings.bytes_max:
            _set_aside(settings)
    # Who may do what is nobody's business but the operator's.
    descriptor = os.open(settings.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size_before = os.fstat(descriptor).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:])
        except OSError:
            os.ftruncate(descriptor, size_before)
            raise
    finally:
        os.close(descriptor)


def _set_aside(settings: AuditFileSettings) -> None:
    """Make room for a new file: each older one takes the next number, and the oldest goes."""
    numbered = [settings.path, *(f"{settings.path}.{number}" for number in range(1, settings.files_max))]
    if len(numbered) == 1:
        os.unlink(settings.path)
        return
    for older, newer in zip(reversed(numbered[1:]), reversed(numbered[:-1]), strict=True):
        with contextlib.suppress(FileNotFoundError):
            os.replace(newer, older)
