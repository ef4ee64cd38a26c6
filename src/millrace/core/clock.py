"""Wall-clock time and fresh identifiers, as interfaces: the simulator brings its own."""

from __future__ import annotations

import os
import time
from typing import Protocol

from millrace.core.ids import NO_TOPIC_ID, TopicId


class Clock(Protocol):
    """Where timestamps come from: the machine, the simulator or a test."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. It may jump; durations come from the event loop."""


class IdSource(Protocol):
    """Where fresh identifiers come from: the machine, the simulator or a test."""

    def topic_id(self) -> TopicId:
        """A topic id that was never used before."""


class SystemClock:
    """The wall clock of this machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251 - the one place that reads the wall clock


class SystemIdSource:
    """Identifiers from the kernel's randomness, in the form of UUID version 4."""

    def topic_id(self) -> TopicId:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = TopicId(bytes(raw))
        assert topic_id != NO_TOPIC_ID
        return topic_id
