"""What OffsetCommit and TxnOffsetCommit share: offsets of partitions, and the place of each one's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from millrace.broker.wire_errors import error_code
from millrace.coordinator.errors import RecordsTooLarge
from millrace.coordinator.runtime import Answer, Outcome
from millrace.core.errors import MillraceError
from millrace.groups.commands import OffsetsCommitted, OffsetToCommit
from millrace.metadata.image import TopicState
from millrace.wire.error_codes import ErrorCode

R = TypeVar("R")


class AskedOffset(Protocol):
    """One partition of a request that commits."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class Place(Protocol):
    """Where the response says what became of that partition."""

    error_code: int


class CommitPlaces:
    """The offsets of one request that can be given to a group, and the place in the response of each."""

    def __init__(self) -> None:
        self.offsets: list[OffsetToCommit] = []
        self._places: list[Place] = []

    def add(
        self,
        topic: TopicState | None,
        asked: AskedOffset,
        place: Place,
        *,
        unknown_topic: int = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ) -> None:
        """Take an offset in; one whose partition does not exist is answered here and now."""
        if topic is None:
            place.error_code = unknown_topic
        elif not 0 <= asked.partition_index < len(topic.partitions):
            place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            self._places.append(place)
            self.offsets.append(
                OffsetToCommit(
                    topic.name,
                    asked.partition_index,
                    asked.committed_offset,
                    asked.committed_leader_epoch,
                    asked.committed_metadata or "",
                    topic.topic_id,
                )
            )

    def answer(
        self, outcome: Outcome | Answer, response: R, code_of: Callable[[MillraceError], int] | None = None
    ) -> R | Awaitable[R]:
        """The response, with the group's answer entered: one error for all offsets, or an outcome for each.
        An awaitable of it where the answer is not known yet."""
        if isinstance(outcome, asyncio.Future):
            return self._answer_later(outcome, response, code_of)
        if isinstance(outcome, MillraceError):
            code = (code_of or commit_error_code)(outcome)
            for place in self._places:
                place.error_code = code
            return response
        assert isinstance(outcome, OffsetsCommitted), outcome
        for place, error in zip(self._places, outcome.errors, strict=True):
            if error is not None:
                place.error_code = error_code(error)
        return response

    async def _answer_later(
        self, outcome: Answer, response: R, code_of: Callable[[MillraceError], int] | None
    ) -> R:
        _ = self.answer(await outcome, response, code_of)
        return response


def commit_error_code(error: MillraceError) -> int:
    """The code of a commit that was refused as a whole."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if isinstance(error, RecordsTooLarge) else error_code(error)
