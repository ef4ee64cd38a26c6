"""Records of many commands in one write: those that one turn of the loop brings for a partition.

With many connections a turn brings many small commands, and a batch with its header, checksum, write and
commit would be the dearest step of each. So records that the rules have let pass may wait until the turn
ends; then each partition's are written as one batch, and all are answered. Nothing waits for more to come.
While turns bring one such command for a partition, each is written at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from millrace.core.errors import MillraceError
from millrace.core.override import override

log = logging.getLogger(__name__)

TRY_EVERY: Final = 32
"""While nothing comes together, one command in so many is staged, to notice when that changes."""


class StagedAnswer(Protocol):
    """Who waits for staged records."""

    def settled(self, error: MillraceError | None) -> None:
        """They are committed, or will never be."""


class Stage(Protocol):
    """A partition that may hold staged records."""

    @property
    def staged_count(self) -> int: ...

    def settle(self) -> bool: ...


class Turns:
    """Which partitions have staged records, and whether staging is worth its while."""

    def __init__(self) -> None:
        self.is_worthwhile = False
        """Whether the last turn brought more than one command for a partition."""
        self._until_try = TRY_EVERY
        self._stages: list[Stage] = []

    def is_time_to_try(self) -> bool:
        """Answers True now and then, and then for the rest of this turn."""
        self._until_try -= 1
        if self._until_try:
            return False
        self._until_try = TRY_EVERY
        self.is_worthwhile = True
        return True

    def add(self, stage: Stage, loop: asyncio.AbstractEventLoop) -> None:
        """Settle it when this turn of the loop ends."""
        if not self._stages:
            loop.call_soon(self._settle_all)
        self._stages.append(stage)

    def _settle_all(self) -> None:
        stages, self._stages = self._stages, []
        together = 0
        for stage in stages:
            together = max(together, stage.staged_count)
            try:
                stage.settle()
            except Exception:
                # A bug there; the requests of the other partitions have still to be answered.
                log.exception("staged records of a partition")
        self.is_worthwhile = together > 1


class JointAnswer:
    """Those who wait until records that were written together are committed.

    They are told in a turn of their own: the commit is noticed in the midst of the partition's work, and an
    answer may let a connection go on with its next request."""

    __slots__ = ("_answers", "_loop")

    def __init__(self, answers: Sequence[StagedAnswer], loop: asyncio.AbstractEventLoop) -> None:
        self._answers = answers
        self._loop = loop

    def done(self) -> bool:
        return False

    def set_result(self, outcome: object, /) -> None:
        error = outcome if isinstance(outcome, MillraceError) else None
        self._loop.call_soon(tell, self._answers, error)

    @override
    def __repr__(self) -> str:
        return f"<JointAnswer of {len(self._answers)}>"


def tell(answers: Sequence[StagedAnswer], error: MillraceError | None) -> None:
    """What became of the records that they wait for."""
    for answer in answers:
        try:
            answer.settled(error)
        except Exception:
            # A bug in that answer: the others wait for theirs.
            log.exception("one who waited for staged records could not be answered")
