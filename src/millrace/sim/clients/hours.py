"""When clients work: always, unless the scenario sends them to rest."""

from __future__ import annotations

import asyncio


class WorkingHours:
    """When clients may work. All clients of a run share one."""

    def __init__(self) -> None:
        self.is_open = True
        self.leave_chance = 0.0
        """How likely a member of a group leaves it for the night; the others keep their place."""
        self._opened = asyncio.Event()
        self._opened.set()

    def open(self) -> None:
        self.is_open = True
        self._opened.set()

    def close(self, *, leave_chance: float) -> None:
        """Send the clients to rest; each ends the turn that it is in."""
        self.is_open = False
        self.leave_chance = leave_chance
        self._opened.clear()

    async def until_open(self, at_most_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._opened.wait()
        except TimeoutError:
            return
