"""Small pieces of work of one turn of the loop, done together.

With many connections a turn brings many small requests, and a write for each would be its dearest step. So
what one turn brings may wait until the turn ends, and is then written with one call. Nothing waits for more
to come. While turns bring one piece each, waiting gains nothing: then each piece is written at once, and only
one in `TRY_EVERY` waits, to notice when that changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

TRY_EVERY: Final = 32
"""While nothing comes together, one piece in so many waits for the end of its turn."""


class TurnBatching:
    """Decides whether work waits for the end of the turn, and does there what has waited."""

    __slots__ = ("_most_together", "_until_try", "_waiting", "is_worthwhile")

    def __init__(self) -> None:
        self.is_worthwhile = False
        """Whether work should wait for others of this turn: the last turn brought several pieces that could
        be done with one call. Where this says no, ask `is_time_to_try`."""
        self._until_try = TRY_EVERY
        self._most_together = 0
        self._waiting: list[Callable[[], object]] = []

    def is_time_to_try(self) -> bool:
        """Answers yes to one piece in `TRY_EVERY`; then waiting is worthwhile for the rest of its turn."""
        self._until_try -= 1
        if self._until_try:
            return False
        self._until_try = TRY_EVERY
        self.is_worthwhile = True
        return True

    def at_end_of_turn(self, loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
        """Have `work` called when this turn of the loop ends: once for each call of this."""
        if not self._waiting:
            loop.call_soon(self._end_turn)
        self._waiting.append(work)

    def came_together(self, count: int) -> None:
        """Note that one call did so many pieces; the next turn is judged by that."""
        if count > self._most_together:
            self._most_together = count

    def _end_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            try:
                work()
            except Exception:
                # That work has a bug; what others left for the end of this turn must still be done.
                log.exception("work that waited for the end of a turn failed")
        self.is_worthwhile = self._most_together > 1
        self._most_together = 0
