"""Checks memory: what a broker remembers must not grow with the work that it has done.

It measures all containers that a broker can reach, and sums them up by the class and the attribute that hold
them. After as much work again, and again, none of the sums may have grown each time.
"""

from __future__ import annotations

import asyncio
import logging
import types
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final

from millrace.sim.run import Run

ROUND_S: Final = 30.0
TOLERANCE: Final = 10
"""By how many entries a sum may differ from time to time: requests under way, batches not committed."""
_CONTAINERS: Final = (list, dict, set, frozenset, deque, tuple)
_MEASURED: Final = (list, dict, set, deque, bytearray, array)
_OURS: Final = "millrace."
_SIMULATED: Final = "millrace.sim."
_PASSED_OVER: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    logging.Logger,
    asyncio.AbstractEventLoop,
    asyncio.Future,
)


def sizes_of(root: object) -> dict[str, int]:
    """How many entries the containers below `root` hold, by class and attribute."""
    found: dict[str, int] = {}
    seen: dict[int, object] = {}
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen or isinstance(value, _PASSED_OVER):
            continue
        seen[id(value)] = value
        if isinstance(value, _MEASURED):
            found[place] = found.get(place, 0) + len(value)
        if isinstance(value, types.MethodType):
            waiting.append((place, value.__self__))
        elif isinstance(value, _CONTAINERS):
            members = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
            waiting += [(place, member) for member in members]
        else:
            waiting += _attributes(value)
    return found


def _attributes(value: object) -> Iterable[tuple[str, object]]:
    kind = type(value)
    if not kind.__module__.startswith(_OURS) or kind.__module__.startswith(_SIMULATED):
        return
    names = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
    for name in [*names, *getattr(value, "__dict__", {})]:
        try:
            yield f"{kind.__name__}.{name}", getattr(value, name)
        except AttributeError:
            continue


async def transactions_that_nobody_reads(run: Run) -> None:
    """Go on for as long as asked, but at least for as many rounds as show a trend."""
    rounds = max(3, int(run.seconds // ROUND_S))
    before: list[dict[str, int]] = []
    growing: list[dict[str, int]] = [{} for _ in run.nodes]
    for number in range(rounds + 1):
        await run.sleep(ROUND_S)
        now = [sizes_of(node.broker) for node in run.nodes]
        for at, sizes in enumerate(now):
            if number == 1:
                growing[at] = dict.fromkeys(sizes, 0)
            if number:
                growing[at] = {
                    place: total + sizes.get(place, 0) - before[at].get(place, 0)
                    for place, total in growing[at].items()
                    if sizes.get(place, 0) - before[at].get(place, 0) > TOLERANCE
                }
        before = now
    for node, places in zip(run.nodes, growing, strict=True):
        for place, total in places.items():
            run.cluster.loop.failures.append(
                f"broker {node.node_id}: {place} grew by {total} in {rounds} rounds"
            )
