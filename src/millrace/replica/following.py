"""What a follower makes of its leader's answers: which records it keeps, which it has to forget.

These are rules without I/O beside the log's own. A follower cuts its log where its history leaves the
leader's, which the leader tells by epoch and end offset (KIP-101, KIP-279); it never cuts to the high
watermark, which may be behind what was acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from millrace.wire.batch_header import HEADER, HEADER_SIZE


class FollowerLog(Protocol):
    """What the rules need of a log."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int

    def append_replicated(self, records: memoryview) -> None: ...
    def last_record_epoch(self) -> int:
        """The leader epoch of the last record, or -1 if there is none."""

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]: ...


class Position(NamedTuple):
    """What a follower asks its leader for."""

    offset: int
    last_epoch: int
    log_start_offset: int


class Fetched(NamedTuple):
    """A leader's answer for one partition, without an error."""

    high_watermark: int
    log_start_offset: int
    records: memoryview | None = None
    diverging: tuple[int, int] | None = None
    """The leader's largest epoch that is not above ours, and where it ends there."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Forget everything from here on before asking again."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Forget everything and begin at the leader's first record: nothing here fits what it still has."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartInside:
    """The log is empty, and the leader's log begins in the middle of these records' first batch, because the
    records before were deleted: keep the batch whole, as the leader does, and begin where the log began."""

    records: bytes


@dataclass(frozen=True, slots=True)
class MoveStart:
    """Delete what is below, as the leader has done."""

    offset: int


Repair: TypeAlias = Truncate | StartOver | StartInside | MoveStart
"""What takes more than an append, and is done before the partition is fetched again."""


def position_of(log: FollowerLog) -> Position:
    return Position(log.log_end_offset, log.last_record_epoch(), log.log_start_offset)


def take(log: FollowerLog, asked_offset: int, fetched: Fetched) -> Repair | None:
    """Append what the leader sent for `asked_offset`, or say what has to be done instead or afterwards.

    An answer to an older question than the one for the log's present end is ignored."""
    if asked_offset != log.log_end_offset:
        return None
    if fetched.diverging is not None:
        return Truncate(truncation_offset(log, *fetched.diverging))
    records = fetched.records
    if records is not None and len(records) >= HEADER_SIZE:
        if HEADER.unpack_from(records)[0] < log.log_end_offset:
            repair = _end_is_inside(log, records)
            if repair is not None:
                return repair
        log.append_replicated(records)
    # The leader's, as far as the records are here. It never falls.
    high_watermark = min(fetched.high_watermark, log.log_end_offset)
    if high_watermark > log.high_watermark:
        log.high_watermark = high_watermark
    if fetched.log_start_offset > log.log_start_offset:
        offset = min(fetched.log_start_offset, log.high_watermark)
        if offset > log.log_start_offset:
            return MoveStart(offset)
    return None


def _end_is_inside(log: FollowerLog, records: memoryview) -> Repair | None:
    """What to do when the leader's batch begins before our end: if it reaches beyond it, the leader has one
    batch where our log ends. Otherwise None: then the leader sent what nobody asked for."""
    header = HEADER.unpack_from(records)
    base_offset, last_offset = header[0], header[0] + header[6]
    if last_offset < log.log_end_offset:
        return None
    if log.log_end_offset == log.log_start_offset:
        return StartInside(bytes(records))
    # A power loss cut a start inside a batch short, and left this end. The leader's batch takes its place.
    return Truncate(base_offset)


def truncation_offset(log: FollowerLog, epoch: int, end_offset: int) -> int:
    """How much of the log to keep when the leader says that `epoch` is the last one that it shares and ends
    at `end_offset` there. If one cut is not enough, the answer to the next fetch tells where to cut again."""
    _, own_end_offset = log.epoch_end_offset(epoch)
    offset = min(end_offset, log.log_end_offset)
    if own_end_offset >= 0:
        offset = min(offset, own_end_offset)
    return max(offset, 0)


def out_of_range(log: FollowerLog, leader_start_offset: int) -> Repair:
    """What to do if the leader has nothing at our end and no history in common: begin where it begins."""
    return StartOver(leader_start_offset)
