"""The audit of a running broker: the auditor, those who write for it, and what it does as time passes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from millrace.broker.auditing.writing import OutboxWriter
from millrace.core.background import Background
from millrace.security.acls.decisions import Access
from millrace.security.audit.auditor import Auditor
from millrace.security.audit.events import Activity, Kind
from millrace.security.audit.folding import WINDOW_MS

TURN_S: Final = 1.0
LAST_WORDS_S: Final = 2.0
"""How long a broker that stops waits until its audit is written."""


class Auditing:
    """Constructing it starts nothing, and lets the decisions of all connections be told from now on."""

    def __init__(
        self, auditor: Auditor, writers: Sequence[OutboxWriter], access: Access, *, broker: str
    ) -> None:
        """`broker` is what the events about the broker itself call it."""
        self.auditor = auditor
        self._broker = broker
        self._writers = tuple(writers)
        self._access = access
        access.auditor = auditor

    def start(self, background: Background) -> None:
        """Write from now on, and tell that the broker has started."""
        for writer in self._writers:
            _ = background.keep(f"audit-{writer.outbox.name}", writer.run)
        _ = background.keep("audit", self._turn)
        self.auditor.lives(Activity.START, f"{self._broker} has started")

    def stops(self) -> None:
        """The broker will stop."""
        self.auditor.lives(Activity.STOP, f"{self._broker} stops")

    async def write_all(self) -> None:
        """Tell all that was counted, and wait for it to be written."""
        self.auditor.finish()
        for writer in self._writers:
            await writer.drain(LAST_WORDS_S)

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        renewed_at = loop.time()
        while True:
            await asyncio.sleep(TURN_S)
            self.auditor.turn()
            if loop.time() - renewed_at >= WINDOW_MS / 1000:
                renewed_at = loop.time()
                if Kind.DATA in self.auditor.policy.kinds:
                    # Who reads and writes all day is asked for again, on the way that tells of it.
                    self._access.renew()
