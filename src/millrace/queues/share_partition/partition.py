"""A share partition: who has which record of a partition, and what is to become of it.

Everything below `start_offset` is done, everything from `end_offset` on is untouched log, and between them
lie runs of records. No input and output happens here and no clock is read: the shell passes the time, reads
batch headers, stores deltas and produces dead letters.

A decision that a client waits for (an acknowledgement) marks its records with a token until its delta is
stored: meanwhile nobody acquires or acknowledges them, and if the delta cannot be stored they are what they
were. A decision that time or the log made (a lock ended) stands whether it can be stored or not; what could
not be stored goes with the next delta.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from millrace.core.errors import MillraceError
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.acknowledging import AckRange, held_pieces
from millrace.queues.share_partition.acquiring import (
    NEVER_CUT,
    BatchSpan,
    Wish,
    archive,
    cut,
    last_of_tail,
    take,
    take_keyed,
)
from millrace.queues.share_partition.breaker import Breaker
from millrace.queues.share_partition.changes import (
    NO_CHANGE,
    AcquiredRun,
    Acquisition,
    Change,
    DeadLetter,
    DeadLetterCause,
    Stop,
)
from millrace.queues.share_partition.endings import Endings, given_back
from millrace.queues.share_partition.key_order import KEYED_RECORDS_MAX, KeyOrder
from millrace.queues.share_partition.ledger import Ledger, Range
from millrace.queues.share_partition.model import (
    AcknowledgeType,
    AcquireMode,
    RecordState,
    StoredState,
)
from millrace.queues.share_partition.pace import Pace, part_of
from millrace.queues.share_partition.runs import ACKNOWLEDGED, ARCHIVED, FRESH, Mark
from millrace.queues.share_partition.window import Window

RUNS_MAX: Final = 10_000
"""With so many runs no new records are delivered until some of them join or are done."""
SPAN_MAX: Final = 1_000_000
"""How far the last delivered record may be ahead of the first that is not done."""
ARCHIVING_MAX: Final = 10_000
"""While so many dead letters wait to be written, nothing is delivered: each delivery may add more."""
# Locks that end shortly one after another are looked at together: each look goes over all runs.
_LOOKS_APART_MS: Final = 50

_AVAILABLE = RecordState.AVAILABLE
_ACQUIRED = RecordState.ACQUIRED
_ARCHIVING = RecordState.ARCHIVING

_Turn = tuple[int, int, Mark, Mark]


class SharePartition:
    """The rules of one share partition. Every `Change` that a method returns has to be carried out."""

    __slots__ = ("_breaker", "_endings", "_ledger", "_looked_ms", "_pace", "_window")

    def __init__(self, settings: ShareSettings, stored: StoredState, jitter: Callable[[], float]) -> None:
        self._endings = Endings(settings, jitter)
        self._window = Window(stored, settings.delivery_count_limit)
        self._ledger = Ledger(self._window)
        self._breaker: Breaker | None = None
        self._looked_ms = 0
        self._pace = Pace()
        self.settings = settings

    @property
    def settings(self) -> ShareSettings:
        return self._endings.settings

    @settings.setter
    def settings(self, settings: ShareSettings) -> None:
        self._endings.settings = settings
        window = self._window
        if not settings.is_ordered_by_key:
            window.keys = None
        elif window.keys is None:
            window.keys = KeyOrder(window.runs, window.start)

    @property
    def start_offset(self) -> int:
        """All below it is done."""
        return self._window.start

    @property
    def end_offset(self) -> int:
        """From it on the log is untouched."""
        return self._window.runs.end

    @property
    def is_stored(self) -> bool:
        """Whether a new leader would find all that is done."""
        ledger = self._ledger
        return not (ledger.writes or ledger.unstored or ledger.lacks_start)

    def done(self) -> tuple[int, list[Range]]:
        """Where it begins, and what behind that is done or only waits for its dead letter."""
        runs, ranges = self._window.runs, list[Range]()
        for first, last, mark in runs.pieces(0, runs.end):
            if mark.state not in (_AVAILABLE, _ACQUIRED):
                _add(ranges, first, last)
        return self.start_offset, ranges

    @property
    def acquired_count(self) -> int:
        return self._window.acquired

    @property
    def archiving_count(self) -> int:
        """How many records wait for their dead letter."""
        return self._window.archiving

    @property
    def delivery_complete_count(self) -> int:
        """How many records from `start_offset` on are done; a lag is the log's end less these two."""
        return self._window.complete

    @property
    def run_count(self) -> int:
        return len(self._window.runs)

    def waiting_dead_letters(self) -> tuple[DeadLetter, ...]:
        """Those whose records are kept until they are written: what a new leader has to produce."""
        runs = self._window.runs
        return tuple(
            _dead_letter(first, last, mark)
            for first, last, mark in runs.pieces(0, runs.end)
            if mark.state is _ARCHIVING and not mark.token
        )

    def stop(self, now_ms: int) -> Stop | None:
        """Why nobody is given anything; None if delivery goes on."""
        if self.settings.is_paused:
            return Stop.PAUSED
        if self._breaker is not None and self._breaker.open_until_ms > now_ms:
            return Stop.BREAKER
        return Stop.DEAD_LETTERS if self._window.archiving >= ARCHIVING_MAX else None

    def is_delivering(self, now_ms: int) -> bool:
        return self.stop(now_ms) is None

    def candidates(
        self, member_id: str, now_ms: int, *, limit_offset: int, records_max: int, waiting: int = 0
    ) -> Sequence[Range]:
        """Which offsets, below the limit, are worth reading for a member, in order; none if there is nothing
        to acquire now. So many others wait for records."""
        wanted = self._room(member_id, records_max, now_ms, waiting)
        if wanted <= 0:
            return ()
        window = self._window
        runs = window.runs
        ranges: list[Range] = []
        if window.keys is not None:
            return self._keyed_candidates(window.keys, limit_offset, wanted)
        for index in range(runs.index(window.ready_from), len(runs)):
            mark = runs.marks[index]
            if mark.state is not _AVAILABLE or mark.token or mark.until_ms:
                continue
            first, last = runs.firsts[index], min(runs.last_of(index), limit_offset - 1)
            if first > last:
                break
            if not ranges:
                window.ready_from = first
            _add(ranges, first, last)
            wanted -= last - first + 1
            if wanted <= 0:
                return ranges
        if not ranges:
            window.ready_from = runs.end
        end, limit = runs.end, min(limit_offset, window.start + SPAN_MAX)
        if end < limit and len(runs) < RUNS_MAX:
            _add(ranges, end, limit - 1)
        return ranges

    def unlearned(self, spans: Sequence[BatchSpan]) -> Sequence[BatchSpan]:
        """The batches, in order, whose keys have to be learned before their records can be acquired."""
        keys = self._window.keys
        if keys is None:
            return ()
        room = KEYED_RECORDS_MAX - keys.records
        wanted: list[BatchSpan] = []
        for span in spans:
            if span.last_offset < keys.known_end or (room <= 0 and keys.records):
                continue
            wanted.append(span)
            room -= span.last_offset - span.first_offset + 1
        return wanted

    def learn_keys(self, first_offset: int, hashes: array[int]) -> None:
        """Learn the keys of a batch: the hash of each of its offsets, `NO_KEY` where there is none. What lies
        between it and the batch before it was compacted away."""
        window, last_offset = self._window, first_offset + len(hashes) - 1
        keys = window.keys
        # While they were computed somebody else may have come with them, or nobody may want them any more.
        if keys is None or last_offset < keys.known_end:
            return
        if last_offset >= window.runs.end:
            window.append(last_offset, FRESH)
        self._ledger.keep(archive(window, keys.known_end, first_offset - 1))
        keys.learn(first_offset, hashes)
        window.trim()

    def acquire(
        self,
        member_id: str,
        spans: Sequence[BatchSpan],
        *,
        ranges: Sequence[Range],
        records_max: int,
        batch_size: int,
        mode: AcquireMode,
        now_ms: int,
        waiting: int = 0,
    ) -> Acquisition:
        """Give a member records of these batches, which were found in these ranges, under a lock. So many
        others wait for records."""
        wanted = self._room(member_id, records_max, now_ms, waiting)
        if wanted <= 0 or not spans or not ranges:
            return Acquisition([])
        settings, window = self.settings, self._window
        end = window.runs.end
        until_ms = now_ms + settings.lock_duration_ms
        cut_at = NEVER_CUT
        if waiting or len(window.held) > (member_id in window.held):
            cut_at = self._pace.cut_at(self._part(member_id, waiting), settings.record_locks_max)
        # Records that nobody has had before: nearly always, so without the general way's detours.
        if ranges[0][0] == end and window.keys is None and not settings.record_max_age_ms:
            is_exact = mode is AcquireMode.RECORD_LIMIT
            tail = last_of_tail(
                spans, end=end, limit=ranges[0][1], records_max=wanted, is_exact=is_exact, cut_at=cut_at
            )
            if tail is not None and (is_exact or tail - end < batch_size):
                window.append(tail, Mark(_ACQUIRED, 1, until_ms, member_id, tail - end + 1))
                return Acquisition([AcquiredRun(end, tail, 1)])
        oldest_ms = now_ms - settings.record_max_age_ms if settings.record_max_age_ms else 0
        wish = Wish(wanted, mode, oldest_ms, cut_at)
        if window.keys is None:
            taking = take(window, spans, ranges, wish, settings.delivery_count_limit)
        else:
            taking = take_keyed(window, window.keys, spans, ranges, wish, settings.delivery_count_limit)
        pieces = cut(taking, batch_size) if mode is AcquireMode.BATCH_OPTIMIZED else taking.pieces
        acquired: list[AcquiredRun] = []
        for first, last, mark in pieces:
            count = mark.delivery_count + 1
            size = mark.size or last - first + 1
            window.turn(first, last, mark, Mark(_ACQUIRED, count, until_ms, member_id, size))
            acquired.append(AcquiredRun(first, last, count))
        change = NO_CHANGE
        if taking.archived:
            self._ledger.keep(taking.archived)
            window.trim()
        if taking.expired:
            change = self._stand(
                [
                    (first, last, mark, self._endings.given_up(mark, DeadLetterCause.EXPIRED))
                    for first, last, mark in taking.expired
                ]
            )
        window.cut_untouched()
        return Acquisition(acquired, change)

    def acknowledge(self, member_id: str, ranges: Sequence[AckRange], now_ms: int) -> Change | MillraceError:
        """Let a member say what has become of records that it holds: all of it counts, or nothing."""
        window = self._window
        pieces = held_pieces(window, member_id, ranges, may_renew=self.settings.may_renew)
        if isinstance(pieces, MillraceError):
            return pieces
        token = self._ledger.next_token
        returning: list[Range] = []
        ended = given_up = 0
        for first, last, mark, kind in pieces:
            if kind is AcknowledgeType.RENEW:
                until_ms = now_ms + self.settings.lock_duration_ms
                window.turn(first, last, mark, mark._replace(until_ms=until_ms))
                continue
            new = self._endings.acknowledged(mark, kind, now_ms)
            state, count, until_ms, _, size, _, _, cause = new
            window.turn(first, last, mark, Mark(state, count, until_ms, "", size, token, mark, cause))
            returning.append((first, last))
            if kind is not AcknowledgeType.GAP:
                ended += last - first + 1
                if state is _ARCHIVING or (new is ARCHIVED):
                    given_up += last - first + 1
        if not returning:
            return NO_CHANGE
        mark = pieces[-1][2]
        self._pace.took(now_ms - mark.until_ms + self.settings.lock_duration_ms, mark.size)
        self._count_ends(ended, given_up, now_ms)
        token, delta = self._ledger.write(returning=returning)
        # What was in flight no longer is, so there is room for others.
        return Change(token, delta, (), wakes=True)

    def release_member(self, member_id: str, now_ms: int, *, in_order: bool) -> Change:
        """A member is gone. If it closed in order it gives its deliveries back; if it was lost they count."""
        window = self._window
        if member_id not in window.held:
            return NO_CHANGE
        runs = window.runs
        held = [
            (first, last, mark)
            for first, last, mark in runs.pieces(0, runs.end)
            if mark.state is _ACQUIRED and mark.owner == member_id
        ]
        if not in_order:
            return self._end_deliveries(held, now_ms)
        for first, last, mark in held:
            window.turn(first, last, mark, given_back(mark))
        window.cut_untouched()
        return Change(wakes=True)

    def expire(self, now_ms: int) -> Change:
        """Look at locks that have ended, and at records that have waited long enough."""
        window = self._window
        has_waited = False
        if self._breaker is not None and 0 < self._breaker.open_until_ms <= now_ms:
            self._breaker.open_until_ms = 0
            has_waited = True
        if window.deadline_ms is None or now_ms < window.deadline_ms:
            return Change(wakes=has_waited)
        self._looked_ms = now_ms
        window.deadline_ms = None
        ended: list[tuple[int, int, Mark]] = []
        for first, last, mark in list(window.runs.pieces(0, window.runs.end)):
            if not mark.until_ms or mark.token:
                continue
            if mark.until_ms > now_ms:
                window.wait_until(mark)
            elif mark.state is _ACQUIRED:
                ended.append((first, last, mark))
            else:
                is_fresh = not mark.delivery_count
                window.turn(first, last, mark, FRESH if is_fresh else mark._replace(until_ms=0))
                has_waited = True
        if ended:
            return self._end_deliveries(ended, now_ms)
        return Change(wakes=has_waited)

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to look at; None for not before something else happens."""
        deadline_ms = self._window.deadline_ms
        if deadline_ms is not None:
            deadline_ms = max(deadline_ms, self._looked_ms + _LOOKS_APART_MS)
        if self._breaker is not None and self._breaker.open_until_ms:
            closes_ms = self._breaker.open_until_ms
            deadline_ms = closes_ms if deadline_ms is None else min(deadline_ms, closes_ms)
        return deadline_ms

    def log_start_moved(self, offset: int) -> Change:
        """The log begins at this offset now; what lay below is lost, whoever held it."""
        window = self._window
        if offset <= window.start:
            return NO_CHANGE
        window.cut_below(offset)
        window.trim()
        token, delta = self._ledger.write()
        return Change(token, delta, (), wakes=True)

    def dead_letter_written(self, first: int, last: int) -> Change:
        """The dead letters of these records are committed, or nobody wants them any more."""
        pieces = self._window.runs.pieces(first, last)
        return self._stand(
            [
                (piece_first, piece_last, mark, ARCHIVED)
                for piece_first, piece_last, mark in pieces
                if mark.state is _ARCHIVING and not mark.token
            ]
        )

    def stored(self, token: int, *, is_stored: bool, now_ms: int) -> Change:
        """A change's delta is stored, or cannot be."""
        window = self._window
        write = self._ledger.written(token, is_stored=is_stored)
        dead_letters = list(write.dead_letters)
        ended: list[tuple[int, int, Mark]] = []
        wakes = False
        for range_first, range_last in write.returning:
            whole = window.runs.mark_of(range_first, range_last)
            pieces = (
                window.runs.pieces(range_first, range_last)
                if whole is None
                else ((range_first, range_last, whole),)
            )
            for first, last, mark in pieces:
                assert mark.token == token, (mark, token)
                assert mark.prior is not None, mark
                if is_stored:
                    new = _settled(mark)
                    if mark.state is _ARCHIVING:
                        dead_letters.append(_dead_letter(first, last, mark))
                    wakes = wakes or mark.state is _AVAILABLE
                else:
                    new = mark.prior
                    if new.until_ms <= now_ms:
                        ended.append((first, last, new))
                window.turn(first, last, mark, new)
        start = window.start
        window.trim()
        window.cut_untouched()
        # A start that moves may have been what kept others from the log.
        wakes = wakes or window.start != start
        if ended:
            change = self._end_deliveries(ended, now_ms)
            return change._replace(dead_letters=(*change.dead_letters, *dead_letters))
        if is_stored and self._ledger.lacks_start:
            return Change(*self._ledger.write(), tuple(dead_letters), wakes)
        return Change(0, None, tuple(dead_letters), wakes)

    def _part(self, member_id: str, waiting: int) -> int:
        held = self._window.held
        return part_of(self.settings.record_locks_max, waiting=waiting, holders=held, member_id=member_id)

    def _room(self, member_id: str, records_max: int, now_ms: int, waiting: int) -> int:
        """How many records a member may be given."""
        if self.stop(now_ms) is not None:
            return 0
        settings, window = self.settings, self._window
        room = min(records_max, settings.record_locks_max - window.acquired)
        if room < 0:
            # A batch that came whole was too much.
            room = min(records_max, self._part(member_id, waiting) - window.held.get(member_id, 0))
        if settings.member_record_locks_max:
            room = min(room, settings.member_record_locks_max - self._window.held.get(member_id, 0))
        return room

    def _keyed_candidates(self, keys: KeyOrder, limit_offset: int, wanted: int) -> Sequence[Range]:
        window = self._window
        ranges: list[Range] = []
        ready = keys.ready(wanted)
        for offset in ready:
            if offset < limit_offset:
                _add(ranges, offset, offset)
        limit = min(limit_offset, window.start + SPAN_MAX)
        has_room = keys.records < KEYED_RECORDS_MAX and len(window.runs) < RUNS_MAX
        if len(ready) < wanted and keys.known_end < limit and has_room:
            _add(ranges, keys.known_end, limit - 1)
        return ranges

    def _end_deliveries(self, held: Iterable[tuple[int, int, Mark]], now_ms: int) -> Change:
        """Take records from members that did not say what has become of them."""
        turns = [(first, last, mark, self._endings.released(mark, now_ms)) for first, last, mark in held]
        ended = sum(last - first + 1 for first, last, _, _ in turns)
        given_up = sum(last - first + 1 for first, last, _, new in turns if new.state is not _AVAILABLE)
        self._count_ends(ended, given_up, now_ms)
        return self._stand(turns)

    def _stand(self, turns: Sequence[_Turn]) -> Change:
        """Change what stays changed whether it can be stored or not."""
        if not turns:
            return NO_CHANGE
        window = self._window
        for first, last, mark, new in turns:
            window.turn(first, last, mark, new)
        dead_letters = [
            _dead_letter(first, last, new) for first, last, _, new in turns if new.state is _ARCHIVING
        ]
        window.trim()
        standing = [(first, last) for first, last, _, _ in turns]
        token, delta = self._ledger.write(standing=standing, dead_letters=dead_letters)
        return Change(token, delta, (), wakes=True)

    def _count_ends(self, ended: int, given_up: int, now_ms: int) -> None:
        if not self.settings.breaker_ratio:
            self._breaker = None
            return
        if self._breaker is None:
            self._breaker = Breaker()
        self._breaker.count(self.settings, ended=ended, given_up=given_up, now_ms=now_ms)


def _settled(mark: Mark) -> Mark:
    """What is said of records once it is stored."""
    if mark.state is RecordState.ACKNOWLEDGED:
        return ACKNOWLEDGED
    return mark._replace(token=0, prior=None)


def _dead_letter(first: int, last: int, mark: Mark) -> DeadLetter:
    assert mark.cause is not None, mark
    return DeadLetter(first, last, mark.delivery_count, mark.cause)


def _add(ranges: list[Range], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
