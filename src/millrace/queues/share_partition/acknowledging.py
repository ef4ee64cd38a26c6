"""Whether a member may say of records what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millrace.core.errors import MillraceError
from millrace.queues.errors import InvalidRecordState, InvalidShareRequest
from millrace.queues.share_partition.model import AcknowledgeType, RecordState
from millrace.queues.share_partition.runs import Mark
from millrace.queues.share_partition.window import Window


class AckRange(NamedTuple):
    """What a member says of records that it was given."""

    first_offset: int
    last_offset: int
    kind: AcknowledgeType


Acknowledged = tuple[int, int, Mark, AcknowledgeType]


def held_pieces(
    window: Window, member_id: str, ranges: Sequence[AckRange], *, may_renew: bool
) -> list[Acknowledged] | MillraceError:
    """The parts of runs that are acknowledged, if the member holds them all. What lies below the window is
    done and may be acknowledged by anybody, to no effect."""
    pieces: list[Acknowledged] = []
    next_offset = 0
    runs = window.runs
    for first, last, kind in ranges:
        if first < next_offset or last < first:
            return InvalidShareRequest(
                f"offsets {first} to {last} are acknowledged behind offset {next_offset - 1}: "
                "ranges must be in order and must not overlap"
            )
        next_offset = last + 1
        if last >= runs.end:
            return InvalidShareRequest(
                f"offset {last} was never delivered: the last one that was is {runs.end - 1}"
            )
        if kind is AcknowledgeType.RENEW and not may_renew:
            return InvalidRecordState("this group's settings do not allow to renew locks")
        whole = runs.mark_of(first, last)
        if whole is not None and whole.state is RecordState.ACQUIRED and whole.owner == member_id:
            pieces.append((first, last, whole, kind))
            continue
        for piece_first, piece_last, mark in runs.pieces(first, last):
            if mark.state is not RecordState.ACQUIRED or mark.owner != member_id:
                return _refusal(piece_first, piece_last, mark)
            pieces.append((piece_first, piece_last, mark, kind))
    return pieces


def _refusal(first: int, last: int, mark: Mark) -> InvalidRecordState:
    offsets = f"offsets {first} to {last}" if last > first else f"offset {first}"
    if mark.token:
        return InvalidRecordState(f"{offsets}: an acknowledgement is being stored")
    if mark.state is RecordState.ACQUIRED:
        return InvalidRecordState(f"{offsets}: acquired by another member")
    return InvalidRecordState(f"{offsets}: not acquired but {mark.state.name.lower()}")
