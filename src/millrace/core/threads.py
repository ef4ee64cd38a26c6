"""How a thread speaks to the loop before its work is done.

Loop and threads share no structure that either changes. A thread gets a description that stays as it is and
returns a result; only the loop puts results into its tables. This is the one call in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


class TellLoop:
    """A call that a thread may make at any time: the loop carries it out later, in the order of the calls and
    before the thread's result arrives."""

    __slots__ = ("_call", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[int], None]) -> None:
        self._loop: Final = loop
        self._call: Final = call

    def __call__(self, number: int) -> None:
        self._loop.call_soon_threadsafe(self._call, number)
