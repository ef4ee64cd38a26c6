"""A wall clock for each host, which follows the loop's time and jumps when the scenario says so; and ids from
the seed."""

from __future__ import annotations

import random
from typing import Final

from millrace.core.ids import NO_TOPIC_ID, TopicId
from millrace.sim.loop import SimLoop

START_MS: Final = 1_800_000_000_000


class SimClock:
    """The wall clock of one host."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0
        """How far the clock is off the right time; a scenario changes it at will."""

    def wall_ms(self) -> int:
        return START_MS + self.offset_ms + int(self._loop.time() * 1000)


class SimIdSource:
    """Ids that the seed decides."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def topic_id(self) -> TopicId:
        topic_id = TopicId(self._chance.randbytes(16))
        assert topic_id != NO_TOPIC_ID
        return topic_id
