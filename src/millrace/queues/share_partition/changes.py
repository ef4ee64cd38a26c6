"""What a decision of a share partition asks its shell to do."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from millrace.queues.share_partition.model import Delta


class DeadLetterCause(Enum):
    """Why a record is given up."""

    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery limit"
    EXPIRED = "expired"


class Stop(Enum):
    """Why nobody is given anything of a share partition."""

    PAUSED = "paused"
    """The group's settings say so."""
    BREAKER = "breaker"
    """Too many deliveries ended as dead letters."""
    DEAD_LETTERS = "dead letters"
    """Too many dead letters wait to be written."""


class DeadLetter(NamedTuple):
    """Records that are to be copied to the dead-letter topic, and are archived once the copy is committed."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: DeadLetterCause


class Change(NamedTuple):
    """Store the delta and say how that went by `SharePartition.stored(token, ...)`; produce the dead letters,
    at once, and say so by `dead_letter_written`."""

    token: int = 0
    """0: there is nothing to store."""
    delta: Delta | None = None
    dead_letters: tuple[DeadLetter, ...] = ()
    wakes: bool = False
    """Whether there may be more to acquire now."""


NO_CHANGE: Final = Change()


class AcquiredRun(NamedTuple):
    """Records that a member was given, all for the same time."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acquisition(NamedTuple):
    """What a member was given, and what was found out on the way: records that are too old."""

    runs: list[AcquiredRun]
    change: Change = NO_CHANGE
