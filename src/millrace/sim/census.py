"""Counts what wakes a simulated cluster up, by process and by the code that runs: little should go on in
quiet times, here and on real machines."""

from __future__ import annotations

import asyncio
from collections import Counter


class Census:
    """How often each callback ran."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, process: str, handle: asyncio.Handle) -> None:
        self._counts[process.partition("-")[0], _origin(handle)] += 1

    def lines(self, seconds: float, most: int = 30) -> list[str]:
        """The most frequent callbacks, as times per simulated second."""
        return [
            f"{count / max(seconds, 1.0):10.4f}/s  {process:<10} {origin}"
            for (process, origin), count in self._counts.most_common(most)
        ]


def _origin(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return f"task {getattr(coroutine, '__qualname__', coroutine)}"
    name = getattr(callback, "__qualname__", None) or type(callback).__name__
    if name == "_set_result_unless_cancelled":
        return "sleep"
    return str(name)
