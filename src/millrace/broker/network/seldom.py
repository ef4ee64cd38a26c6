"""Messages that others can cause as often as they like: a few of them are told, the rest is counted."""

from __future__ import annotations

import logging
from typing import Final

INTERVAL_S: Final = 10.0
TOLD_MAX: Final = 5
"""In each interval: enough to see what goes on, too few to fill a disk."""


class Seldom:
    """Tells no more than so much in an interval, and then how much it kept to itself."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._since_s = float("-inf")
        self._told = 0
        self._kept = 0

    def tell(self, now_s: float, message: str, **facts: object) -> None:
        """Log this as a warning, unless there was much of it lately."""
        if now_s - self._since_s >= INTERVAL_S:
            self._since_s, self._told = now_s, 0
        if self._told >= TOLD_MAX:
            self._kept += 1
            return
        self._told += 1
        kept, self._kept = self._kept, 0
        self._log.warning(message, extra={**facts, "not_told": kept} if kept else facts)
