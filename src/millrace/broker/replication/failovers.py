"""Lets requests for metadata wait while leaders are being replaced.

A client that loses a leader asks another broker within a millisecond. If that names the old leader once more,
the client may not ask again for a second; if it answers a little later, it names the new one. The wait is
short and bounded, and happens only while a failover is known to be under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.core.background import Failures, Tasks
from millrace.metadata.election import standing_of
from millrace.metadata.image import Image

WAIT_MS_MAX: Final = 300
"""A failover takes some ten milliseconds where nothing is in its way."""
POLL_MS: Final = 5
TURNS: Final = 2
"""So many turns of the loop pass before the broker notices a broken connection."""


class Failovers:
    """Whether leaders are being replaced, and a short wait for the new ones."""

    def __init__(
        self,
        image: Callable[[], Image],
        is_probing: Callable[[], bool],
        failures: Failures | None = None,
    ) -> None:
        """`is_probing`: whether a connection to another broker broke, and it is not yet known why."""
        self._image = image
        self._is_probing = is_probing
        self._checked: Image | None = None
        self._lacks_leaders = False
        self._looking: asyncio.Task[None] | None = None
        self._tasks = Tasks(failures)

    def is_under_way(self) -> bool:
        image = self._image()
        if self._is_probing():
            return True
        if not image.fenced and not image.stopping:
            return False
        checked = self._checked
        # A broker that is about to stop changes no revision of the topology.
        if (
            checked is None
            or checked.topology_revision != image.topology_revision
            or checked.stopping is not image.stopping
        ):
            self._checked = image
            self._lacks_leaders = _lacks_leaders(image)
        return self._lacks_leaders

    async def wait(self) -> None:
        """Return when no failover is under way any more, or when it takes too long."""
        # A leader's end reaches its clients and this broker at the same time: the broker has to notice what
        # arrived with a request before it answers the request.
        for _ in range(TURNS):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + WAIT_MS_MAX / 1000
        while self.is_under_way() and loop.time() < deadline_s:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await asyncio.shield(self._next_end())
            except TimeoutError:
                return

    def _next_end(self) -> asyncio.Task[None]:
        """One task looks for all who wait: in a failover that is every client."""
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.start("look-for-leaders", self._look())
        return self._looking

    async def _look(self) -> None:
        for _ in range(WAIT_MS_MAX // POLL_MS):
            await asyncio.sleep(POLL_MS / 1000)
            if not self.is_under_way():
                return


def _lacks_leaders(image: Image) -> bool:
    """Whether a partition is led by a broker that is gone or about to go while another one could lead it."""
    willing = standing_of(image).willing
    return any(
        state.leader >= 0 and state.leader not in willing and any(node_id in willing for node_id in state.isr)
        for topic in image.topics.values()
        for state in topic.partitions
    )
