"""Requests that wait for records which were written together with others of the same turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from millrace.core.errors import MillraceError
from millrace.core.override import override

log = logging.getLogger(__name__)


class StagedAnswer(Protocol):
    """A request that waits for staged records."""

    def stored(self, error: MillraceError | None) -> None:
        """Answer: the records are committed, or with an error never will be."""


class JointAnswer:
    """Requests that wait until records which were written together are committed.

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
    """Tell all of them what became of the records that they wait for."""
    for answer in answers:
        try:
            answer.stored(error)
        except Exception:
            # That answer has a bug; the others wait for theirs.
            log.exception("a request that waited for staged records could not be answered")
