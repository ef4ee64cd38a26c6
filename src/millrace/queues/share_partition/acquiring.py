"""Which records of a share partition a member is given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from millrace.queues.share_partition.isolation import isolation_begins_at, part_size
from millrace.queues.share_partition.key_order import KeyOrder
from millrace.queues.share_partition.model import AcquireMode, RecordState
from millrace.queues.share_partition.runs import ARCHIVED, FRESH, Mark
from millrace.queues.share_partition.window import Window

NEVER_CUT: Final = 1 << 62

_AVAILABLE = RecordState.AVAILABLE


class BatchSpan(NamedTuple):
    """One record batch of the log, from its header alone."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int = -1
    is_aborted: bool = False
    """Of an aborted transaction, and the group reads what is committed: archived and not delivered."""


class Taking(NamedTuple):
    """What one look over batches found. Only what is archived is so already."""

    pieces: list[tuple[int, int, Mark]]
    """Available records to acquire."""
    borders: list[int]
    """Where batches begin in them: there the answer may be cut."""
    expired: list[tuple[int, int, Mark]]
    archived: list[tuple[int, int]]


class Wish(NamedTuple):
    """What a member asks for."""

    records_max: int
    mode: AcquireMode
    oldest_ms: int
    """Batches whose last record is older are not delivered."""
    cut_at: int = NEVER_CUT
    """A batch with more records than this is cut, whatever the mode: others want some of it, too."""


def take(
    window: Window,
    spans: Sequence[BatchSpan],
    ranges: Sequence[tuple[int, int]],
    wish: Wish,
    delivery_limit: int,
) -> Taking:
    """Choose as many records as are wished for, or the batches that have so many. What lies in the ranges
    before and between the batches was compacted away. The window is stretched over the batches that were
    looked at; the caller cuts off what stays untouched."""
    taking = Taking([], [], [], [])
    isolates_from = isolation_begins_at(delivery_limit)
    is_exact = wish.mode is AcquireMode.RECORD_LIMIT
    left = wish.records_max
    cut_left = min(left, wish.cut_at) if is_exact else wish.cut_at
    for range_first, range_last, span in _overlaps(spans, ranges):
        first, last = max(span.first_offset, range_first), min(span.last_offset, range_last)
        if last >= window.runs.end:
            window.append(last, FRESH)
        if first > range_first:
            taking.archived.extend(archive(window, range_first, first - 1))
        if span.is_aborted:
            taking.archived.extend(archive(window, first, last))
            continue
        is_expired = 0 <= span.max_timestamp_ms < wish.oldest_ms
        taking.borders.append(first)
        for piece_first, piece_last, mark in window.runs.pieces(first, last):
            if mark.state is not _AVAILABLE or mark.token or mark.until_ms:
                continue
            if is_expired:
                taking.expired.append((piece_first, piece_last, mark))
                continue
            if mark.delivery_count >= isolates_from:
                # Never behind others in one answer: these would be delivered once more because of it.
                if not taking.pieces:
                    part = part_size(
                        mark.size, delivery_count=mark.delivery_count, delivery_limit=delivery_limit
                    )
                    part_last = piece_first + min(part, cut_left) - 1
                    part_last = min(part_last, range_last, spans[-1].last_offset)
                    _take_part(window, taking, piece_first, part_last, delivery_limit)
                return taking
            if piece_last - piece_first >= cut_left:
                # Batches that fit go whole, before one is cut.
                if cut_left and (is_exact or not taking.pieces):
                    _add(taking.pieces, piece_first, piece_first + cut_left - 1, mark)
                return taking
            _add(taking.pieces, piece_first, piece_last, mark)
            left -= piece_last - piece_first + 1
            cut_left -= piece_last - piece_first + 1
        if left <= 0:
            return taking
    return taking


def last_of_tail(
    spans: Sequence[BatchSpan],
    *,
    end: int,
    limit: int,
    records_max: int,
    is_exact: bool,
    cut_at: int = NEVER_CUT,
) -> int | None:
    """Up to where a member is given untouched log from `end` on, if nothing stands in the way: batches that
    follow each other, none of them aborted. None if a closer look has to be taken."""
    last = end - 1
    for span in spans:
        if span.first_offset > last + 1 or span.is_aborted:
            return None
        if span.last_offset - end >= cut_at and not is_exact:
            # Batches that fit go whole, before one is cut.
            last = last if last >= end else end + cut_at - 1
            break
        last = span.last_offset
        if last - end + 1 >= records_max:
            break
    last = min(last, limit)
    if is_exact:
        last = min(last, end + min(records_max, cut_at) - 1)
    return last if last >= end else None


def take_keyed(
    window: Window,
    keys: KeyOrder,
    spans: Sequence[BatchSpan],
    ranges: Sequence[tuple[int, int]],
    wish: Wish,
    delivery_limit: int,
) -> Taking:
    """The same for a group that wants the records of a key one after another: at most one of each, never more
    than are wished for, and only of batches whose keys are known."""
    taking = Taking([], [], [], [])
    firsts: list[int] = []
    lasts: list[int] = []
    for range_first, range_last, span in _overlaps(spans, ranges):
        if span.last_offset >= keys.known_end:
            break
        first, last = max(span.first_offset, range_first), min(span.last_offset, range_last)
        if first > range_first:
            taking.archived.extend(archive(window, range_first, first - 1))
        if span.is_aborted:
            taking.archived.extend(archive(window, first, last))
        elif 0 <= span.max_timestamp_ms < wish.oldest_ms:
            taking.expired.extend(
                piece
                for piece in window.runs.pieces(first, last)
                if piece[2].state is _AVAILABLE and not piece[2].token and not piece[2].until_ms
            )
        else:
            taking.borders.append(first)
            firsts.append(first)
            lasts.append(last)
    isolates_from = isolation_begins_at(delivery_limit)
    for offset in keys.ready(min(wish.records_max, wish.cut_at)):
        index = bisect_right(firsts, offset) - 1
        if index < 0 or offset > lasts[index]:
            continue
        mark = window.runs.marks[window.runs.index(offset)]
        if mark.delivery_count >= isolates_from:
            if not taking.pieces:
                taking.pieces.append((offset, offset, mark))
            break
        _add(taking.pieces, offset, offset, mark)
    return taking


def archive(window: Window, first: int, last: int) -> list[tuple[int, int]]:
    """Archive what is available of a range, and say what that was."""
    archived = []
    for piece_first, piece_last, mark in window.runs.pieces(first, last):
        if mark.state is _AVAILABLE and not mark.token:
            window.turn(piece_first, piece_last, mark, ARCHIVED)
            archived.append((piece_first, piece_last))
    return archived


def cut(taking: Taking, batch_size: int) -> list[tuple[int, int, Mark]]:
    """The pieces, cut where a batch begins and as many records as that were passed."""
    pieces: list[tuple[int, int, Mark]] = []
    for first, last, mark in taking.pieces:
        if last - first >= batch_size:
            for border in taking.borders:
                if border > last:
                    break
                if border - first >= batch_size:
                    pieces.append((first, border - 1, mark))
                    first = border
        pieces.append((first, last, mark))
    return pieces


def _overlaps(
    spans: Sequence[BatchSpan], ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, BatchSpan]]:
    """Every batch with every range that it lies in; the range from where the batch before it ended."""
    index = 0
    for first, last in ranges:
        while index < len(spans):
            span = spans[index]
            if span.last_offset >= first:
                if span.first_offset > last:
                    break
                yield first, last, span
                first = span.last_offset + 1
                if first > last:
                    # The next range may begin in this batch, too.
                    break
            index += 1


def _take_part(window: Window, taking: Taking, first: int, last: int, delivery_limit: int) -> None:
    """Take the part of what was first delivered together, from records with other counts, too, but none
    behind others that is delivered for the last time."""
    size = 0
    for piece_first, piece_last, mark in window.runs.pieces(first, last):
        if mark.state is not _AVAILABLE or mark.token or mark.until_ms:
            return
        if piece_first == first:
            size = mark.size
        elif mark.size != size or mark.delivery_count >= delivery_limit - 1:
            return
        taking.pieces.append((piece_first, piece_last, mark))


def _add(pieces: list[tuple[int, int, Mark]], first: int, last: int, mark: Mark) -> None:
    if pieces and pieces[-1][1] == first - 1 and pieces[-1][2] == mark:
        first = pieces.pop()[0]
    pieces.append((first, last, mark))
