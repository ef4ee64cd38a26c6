"""Holds replication to a rate: says who may go on now, and lets those go on later who have to wait.

In each direction there is one quota and a queue of those who found it used up. A timer lets them go on, so
that nobody has to ask again, and in the order in which they came, so that no partition is left behind.
Replicas in sync are never held back: they would hold up producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.core.ids import NodeId
from millrace.metadata.image import Image
from millrace.replica.partition import Partition
from millrace.replica.quota import ReplicationQuota

WAIT_S_MIN: Final = 0.005
"""Timers are not finer than this; a timer that fired too early would only be set again."""


class Throttle:
    """One quota, and those who wait for it."""

    def __init__(self) -> None:
        self._quota = ReplicationQuota()
        self._waiting: dict[object, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.taken_bytes = 0
        self._passed_bytes = 0
        self._waited_s = 0.0
        self._waited_until_s = 0.0

    @property
    def is_limited(self) -> bool:
        return self._quota.is_limited

    @property
    def rate(self) -> int | None:
        """Bytes a second, None without a limit."""
        return self._quota.rate if self._quota.is_limited else None

    @property
    def passed_bytes(self) -> int:
        """The bytes taken, as a count that only grows. The count itself may fall, because a follower takes
        all that it asks for and gives back what does not come."""
        self._passed_bytes = max(self._passed_bytes, self.taken_bytes)
        return self._passed_bytes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def waited_s(self) -> float:
        """How long all have waited together, those who still wait included."""
        self._count_wait()
        return self._waited_s

    def set_rate(self, rate: int) -> None:
        if rate == self._quota.rate:
            return
        self._quota.set_rate(rate, asyncio.get_running_loop().time())
        # Those who wait find out themselves how long they have to with the new rate.
        self.let_go()

    def available(self) -> int:
        """How many bytes may be taken now; 0 while anybody waits, since those who wait come first."""
        if self._timer is not None:
            return 0
        return self._quota.available(asyncio.get_running_loop().time())

    def take(self, size_bytes: int) -> None:
        """Take bytes, also more than are available, for a batch that is larger."""
        self.taken_bytes += size_bytes
        self._quota.take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        self._quota.give_back(size_bytes)

    def wait(self, who: object, go_on: Callable[[], None]) -> None:
        """Have `go_on` called when there is something to take, after all who wait already."""
        self._count_wait()
        self._waiting[who] = go_on
        if self._timer is None:
            loop = asyncio.get_running_loop()
            delay_s = max(self._quota.wait_s(loop.time()), WAIT_S_MIN)
            self._timer = loop.call_later(delay_s, self.let_go)

    def forget(self, who: object) -> None:
        if who in self._waiting:
            self._count_wait()
            del self._waiting[who]

    def let_go(self) -> None:
        """Let all who wait look again, now."""
        if self._waiting:
            self._count_wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting.values():
            go_on()

    def stop(self) -> None:
        self._waiting.clear()
        self.let_go()

    def _count_wait(self) -> None:
        """Add up the wait so far, before anybody comes or goes."""
        now_s = asyncio.get_running_loop().time()
        self._waited_s += len(self._waiting) * (now_s - self._waited_until_s)
        self._waited_until_s = now_s


class FollowerThrottles:
    """Which of this broker's followers are held to a rate: those that the settings name, and those that the
    controller moves to a new broker."""

    def __init__(self, image: Callable[[], Image], node_id: NodeId) -> None:
        self._image = image
        self._node_id = node_id
        self.named = Throttle()
        self.arriving = Throttle()
        self.is_on = False
        """Whether any follower may be held back at all. While none may, a fetch looks at nothing else."""

    def refresh(self) -> None:
        """Rates have changed, or the brokers that are being filled."""
        self.is_on = self.named.is_limited or self._node_id in self._image().filling

    def of(self, partition: Partition) -> Throttle | None:
        """What holds this partition back, if it is not in sync; None if nothing does."""
        is_named = partition.is_throttled_as_follower and self.named.is_limited
        image = self._image()
        if not is_named and self._node_id not in image.filling:
            return None
        topic = image.topics_by_id.get(partition.topic_id)
        if topic is None or partition.index >= len(topic.partitions):
            return None
        state = topic.partitions[partition.index]
        if self._node_id in state.isr:
            return None
        if is_named:
            return self.named
        return self.arriving if self._node_id in state.adding else None

    def forget(self, who: object) -> None:
        self.named.forget(who)
        self.arriving.forget(who)

    def stop(self) -> None:
        self.named.stop()
        self.arriving.stop()
