"""How far moves are, in bytes, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from millrace.cli.broker_requests import Connection
from millrace.cli.options import BrokerAddress
from millrace.cli.output import progress
from millrace.cli.reassign.reassignments import Layout, Plan, moving, read_replica_sizes, sizes_of_leaders
from millrace.core.ids import NodeId, TopicPartition
from millrace.core.units import seconds_text

_POLL_S: Final = 0.5
_SURE_AFTER_S: Final = 3.0
"""Before this time the speed so far says little."""

Copy = tuple[TopicPartition, NodeId]


class Copies:
    """The replicas that are to be copied, and what of them has arrived."""

    def __init__(self, layout: Layout, plan: Plan, sizes: dict[Copy, int]) -> None:
        leaders = sizes_of_leaders(layout, sizes)
        self.total_bytes: dict[Copy, int] = {
            (name, node_id): leaders.get(name, 0)
            for name, nodes in plan.items()
            for node_id in nodes
            if node_id not in layout.replicas.get(name, ()) or node_id not in layout.in_sync.get(name, ())
        }
        self._arrived: dict[Copy, int] = {}

    def update(self, sizes: dict[Copy, int], under_way: Iterable[TopicPartition]) -> None:
        still = set(under_way)
        for copy, total in self.total_bytes.items():
            self._arrived[copy] = min(sizes.get(copy, 0), total) if copy[0] in still else total

    @property
    def arrived_bytes(self) -> int:
        return sum(self._arrived.values())

    def left_by_broker(self) -> dict[NodeId, int]:
        left: dict[NodeId, int] = {}
        for (name, node_id), total in self.total_bytes.items():
            left[node_id] = left.get(node_id, 0) + total - self._arrived.get((name, node_id), 0)
        return left


def seconds_left(copies: Copies, *, rate: int | None, copied_bytes: int, elapsed_s: float) -> float | None:
    """How long the rest takes at the speed so far; before that is known, at the rate of the throttle, which
    counts for each broker by itself. None if neither is known."""
    left = copies.left_by_broker()
    if elapsed_s >= _SURE_AFTER_S and copied_bytes > 0:
        return sum(left.values()) * elapsed_s / copied_bytes
    if rate is not None:
        return max(left.values(), default=0) / rate
    return None


def wait_until_moved(
    broker: Connection, layout: Layout, plan: Plan, *, rate: int | None, where: BrokerAddress
) -> None:
    """Return when all of the plan has moved, with a bar meanwhile."""
    copies = Copies(layout, plan, read_replica_sizes(layout, where))
    started = time.monotonic()
    shown = first_bytes = None
    with progress("moving partitions", total=max(sum(copies.total_bytes.values()), 1)) as bar:
        while True:
            under_way = moving(broker)
            rest = [name for name in plan if name in under_way]
            copies.update(read_replica_sizes(layout, where, among=rest), rest)
            arrived = copies.arrived_bytes
            if first_bytes is None:
                first_bytes = arrived
            elapsed_s = time.monotonic() - started
            left_s = seconds_left(copies, rate=rate, copied_bytes=arrived - first_bytes, elapsed_s=elapsed_s)
            bar.advance(arrived - (shown or 0), note=_note(len(plan) - len(rest), len(plan), copies, left_s))
            shown = arrived
            if not rest:
                return
            time.sleep(_POLL_S)


def _note(done: int, total: int, copies: Copies, left_s: float | None) -> str:
    size = f"{size_text(copies.arrived_bytes)} of {size_text(sum(copies.total_bytes.values()))}"
    left = f", about {seconds_text(left_s)} left" if left_s else ""
    return f"{done}/{total} partitions, {size}{left}"


def size_text(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
