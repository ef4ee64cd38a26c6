"""Empties an outbox into the place that it stands for, for as long as the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from millrace.core.errors import MillraceError
from millrace.security.audit.events import Event
from millrace.security.audit.outbox import Outbox

log = logging.getLogger(__name__)

EVENTS_AT_ONCE: Final = 100
"""So many are put into words without a pause: about two milliseconds."""
RETRY_S: Final = 0.25
RETRY_S_MAX: Final = 5.0


class OutboxWriter:
    """One place and its outbox. A failure to write is expected: it is tried again, and the events stay."""

    def __init__(self, outbox: Outbox, write: Callable[[Sequence[Event]], Awaitable[None]]) -> None:
        self.outbox = outbox
        self._write = write
        self._is_wanted = asyncio.Event()
        self._is_done = asyncio.Event()
        self._failures_in_a_row = 0
        outbox.wake = self._is_wanted.set

    async def run(self) -> None:
        """Write whatever comes."""
        loop = asyncio.get_running_loop()
        while True:
            events = self.outbox.first(EVENTS_AT_ONCE)
            if not events:
                self._is_done.set()
                self._is_wanted.clear()
                await self._is_wanted.wait()
                continue
            try:
                await self._write(events)
            except (MillraceError, OSError) as error:
                self._failed(error)
                await asyncio.sleep(min(RETRY_S * 2 ** min(self._failures_in_a_row, 10), RETRY_S_MAX))
                continue
            if self._failures_in_a_row:
                log.info("the audit is written again", extra={"place": self.outbox.name})
                self._failures_in_a_row = 0
            self.outbox.took(len(events), loop.time())

    async def drain(self, timeout_s: float) -> None:
        """Wait until all is written, but not for ever; `run` does it meanwhile."""
        if len(self.outbox):
            self._is_done.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_done.wait()
        if len(self.outbox):
            extra = {"place": self.outbox.name, "events": len(self.outbox)}
            log.warning("the audit could not be written to its end", extra=extra)

    def _failed(self, error: Exception) -> None:
        self._failures_in_a_row += 1
        self.outbox.failed()
        if self._failures_in_a_row == 1:
            extra = {"place": self.outbox.name, "reason": str(error), "events": len(self.outbox)}
            log.warning("the audit cannot be written, and is tried again", extra=extra)
