"""The rules of a share partition against a model that keeps a dictionary entry for every offset.

The letters are those of the properties that every history must have: nobody acquires what another has (a),
what was acknowledged is not delivered again (b), what lies below the start is done (c), counts stay in their
bounds (d), what can be had is given (e), memory follows the runs (f), the lag is what is not done (g), and
what is stored gives the same runs (h).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from itertools import groupby

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.core.errors import MillraceError
from millrace.queues.errors import InvalidRecordState, InvalidShareRequest
from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.acknowledging import AckRange
from millrace.queues.share_partition.acquiring import BatchSpan
from millrace.queues.share_partition.changes import Change
from millrace.queues.share_partition.model import (
    AcknowledgeType,
    AcquireMode,
    Delta,
    RecordState,
    StateBatch,
    StoredState,
)
from millrace.queues.share_partition.partition import SharePartition

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
MEMBERS = ("a", "b", "c")


@dataclass
class Cell:
    """What the model knows of one offset."""

    state: RecordState = AVAILABLE
    count: int = 0
    owner: str = ""
    until_ms: int = 0
    token: int = 0
    prior: Cell | None = None

    @property
    def is_ready(self) -> bool:
        return self.state is AVAILABLE and not self.token and not self.until_ms

    @property
    def is_done(self) -> bool:
        return self.state in DONE and not self.token


class Store:
    """What `__share_group_state` says, kept by offset."""

    def __init__(self) -> None:
        self.start = 0
        self.complete = 0
        self.cells: dict[int, tuple[RecordState, int, int]] = {}

    def apply(self, delta: Delta) -> None:
        if delta.start_offset >= 0:
            self.start = delta.start_offset
        self.complete = delta.delivery_complete_count
        for batch in delta.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.cells[offset] = (batch.state, batch.delivery_count, batch.not_before_ms)
        self.cells = {offset: cell for offset, cell in self.cells.items() if offset >= self.start}

    def read(self) -> StoredState:
        batches = tuple(StateBatch(offset, offset, *cell) for offset, cell in sorted(self.cells.items()))
        return StoredState(1, self.start, self.complete, batches)


class Model(RuleBasedStateMachine):
    is_ordered_by_key = False

    @initialize(
        limit=st.integers(1, 6),
        has_dead_letters=st.booleans(),
        backoff_ms=st.sampled_from([0, 50]),
        failures_only=st.booleans(),
    )
    def begin(self, limit: int, has_dead_letters: bool, backoff_ms: int, failures_only: bool) -> None:
        self.settings = ShareSettings(
            lock_duration_ms=100,
            delivery_count_limit=limit,
            record_locks_max=25,
            member_record_locks_max=15,
            dead_letter_topic="d" if has_dead_letters else "",
            retry_backoff_ms=backoff_ms,
            retry_backoff_max_ms=120,
            counts_failures_only=failures_only,
            is_ordered_by_key=self.is_ordered_by_key,
        )
        self.limit_highest = limit
        self.now_ms = 1_000
        self.log_start = self.log_end = 0
        self.spans: list[BatchSpan] = []
        self.cells: dict[int, Cell] = {}
        self.store = Store()
        self.answered: set[int] = set()
        self.letters: list[tuple[int, int]] = []
        self._load()
        for size in (5, 1, 1, 8, 20):
            self.produce(size, 0, aborted=False)

    def _load(self) -> None:
        self.partition = SharePartition(self.settings, self.store.read(), lambda: 0.5)
        self.writes: list[tuple[Change, str]] = []
        self.standing: dict[int, set[int]] = {}
        self.start = self.store.start
        for offset in range(self.start, self.log_end):
            state, count, until_ms = self.store.cells.get(offset, (AVAILABLE, 0, 0))
            self.cells[offset] = Cell(state, 0 if state in DONE else count, until_ms=until_ms)
        self._trim()
        self.letters = [letter[:2] for letter in self.partition.waiting_dead_letters()]

    # What happens.

    @rule(
        size=st.integers(1, 12),
        gap=st.sampled_from([0, 0, 0, 3]),
        aborted=st.sampled_from([False] * 5 + [True]),
    )
    def produce(self, size: int, gap: int, aborted: bool) -> None:
        if self.log_end > 150:
            return
        first = self.log_end + gap
        self.spans.append(BatchSpan(first, first + size - 1, -1, aborted))
        for offset in range(self.log_end, first + size):
            self.cells[offset] = Cell()
        self.log_end = first + size

    @rule(
        member=st.sampled_from(MEMBERS),
        records_max=st.integers(1, 20),
        batch_size=st.integers(1, 20),
        mode=st.sampled_from(AcquireMode),
        waiting=st.sampled_from([0, 0, 1, 7]),
    )
    def acquire(
        self, member: str, records_max: int, batch_size: int, mode: AcquireMode, waiting: int
    ) -> None:
        ranges = self.partition.candidates(
            member, self.now_ms, limit_offset=self.log_end, records_max=records_max, waiting=waiting
        )
        spans = [
            span
            for span in self.spans
            if any(span.first_offset <= last and span.last_offset >= first for first, last in ranges)
        ]
        for span in self.partition.unlearned(spans):
            hashes = array("q", map(_key, range(span.first_offset, span.last_offset + 1)))
            self.partition.learn_keys(span.first_offset, hashes)
        acquired = self.partition.acquire(
            member,
            spans,
            ranges=ranges,
            records_max=records_max,
            batch_size=batch_size,
            mode=mode,
            now_ms=self.now_ms,
            waiting=waiting,
        )
        room = min(records_max, 25 - self._held(MEMBERS), 15 - self._held([member]))
        if self._held(MEMBERS) > 25:
            # A batch that came whole keeps nobody from the part of the others.
            members = waiting + sum(each == member or self._held([each]) > 0 for each in MEMBERS)
            room = min(records_max, 25 // members - self._held([member]), 15 - self._held([member]))
        batched = [
            offset for span in self.spans if not span.is_aborted for offset in range(span[0], span[1] + 1)
        ]
        could_go = [offset for offset in batched if offset >= self.start and self.cells[offset].is_ready]
        if room > 0 and any(self._is_first_of_its_key(offset) for offset in could_go):
            assert acquired.runs, "(e) somebody could have had a record"
        self._archive_missing(ranges, spans)
        taken = 0
        for run in acquired.runs:
            for offset in range(run.first_offset, run.last_offset + 1):
                cell = self.cells[offset]
                assert cell.is_ready, f"(a) {offset} was not available: {cell}"
                assert self._is_first_of_its_key(offset), f"{offset} overtook another of its key"
                assert offset not in self.answered, f"(b) {offset} was acknowledged"
                assert run.delivery_count == cell.count + 1, f"(d) {offset}: {run} after {cell}"
                assert run.delivery_count <= self.limit_highest, f"(d) {offset}: {run}"
                self.cells[offset] = Cell(ACQUIRED, cell.count + 1, member, self.now_ms + 100)
                taken += 1
        if mode is AcquireMode.RECORD_LIMIT:
            assert taken <= max(room, 0)

    def _archive_missing(self, ranges: object, spans: list[BatchSpan]) -> None:
        """What was compacted away or aborted is archived when somebody comes by: the model is told by the
        partition where that was, and checks that it had reason to."""
        for offset in range(self.start, self.partition.end_offset):
            cell = self.cells[offset]
            if not cell.is_ready and not (cell.state is AVAILABLE and not cell.token):
                continue
            if self._state(offset) is RecordState.ARCHIVED:
                span = next((span for span in self.spans if span[0] <= offset <= span[1]), None)
                assert span is None or span.is_aborted, f"{offset} was archived without reason"
                self.cells[offset] = Cell(RecordState.ARCHIVED)
        self._trim()

    @rule(
        member=st.sampled_from(MEMBERS),
        kinds=st.lists(
            st.tuples(st.integers(0, 6), st.sampled_from(AcknowledgeType)), min_size=1, max_size=5
        ),
        first=st.integers(0, 160),
        aims_well=st.sampled_from([True, True, True, False]),
    )
    def acknowledge(
        self, member: str, kinds: list[tuple[int, AcknowledgeType]], first: int, aims_well: bool
    ) -> None:
        ranges: list[AckRange] = []
        if aims_well:
            held = [
                offset
                for offset in self._window()
                if self.cells[offset].owner == member and not self.cells[offset].token
            ]
            for skip, kind in kinds:
                ranges += [AckRange(offset, offset, kind) for offset in held[:skip]]
                held = held[skip + 1 :]
        else:
            for size, kind in kinds:
                ranges.append(AckRange(first, first + size, kind))
                first += size + 1
        self._say(member, ranges)

    @rule(member=st.sampled_from(MEMBERS), size=st.integers(1, 20))
    def accept_the_first(self, member: str, size: int) -> None:
        held = [offset for offset in self._window() if self.cells[offset].owner == member]
        self._say(member, [AckRange(offset, offset, AcknowledgeType.ACCEPT) for offset in held[:size]])

    def _say(self, member: str, ranges: list[AckRange]) -> None:
        if not ranges:
            return
        change = self.partition.acknowledge(member, ranges, self.now_ms)
        expected = self._refusal(member, ranges)
        if expected is not None:
            assert isinstance(change, expected), (change, expected)
            return
        assert isinstance(change, Change), change
        for range_first, range_last, kind in ranges:
            for offset in range(max(range_first, self.start), range_last + 1):
                self._end(offset, kind, change.token)
        self._carry_out(change)

    def _refusal(self, member: str, ranges: list[AckRange]) -> type[MillraceError] | None:
        for first, last, _ in ranges:
            if last >= self.start and last >= self.partition.end_offset:
                return InvalidShareRequest
            for offset in range(max(first, self.start), last + 1):
                cell = self.cells[offset]
                if cell.state is not ACQUIRED or cell.owner != member or cell.token:
                    return InvalidRecordState
        return None

    def _end(self, offset: int, kind: AcknowledgeType, token: int) -> None:
        cell = self.cells[offset]
        if kind is AcknowledgeType.RENEW:
            self.cells[offset] = replace(cell, until_ms=self.now_ms + 100)
            return
        if kind is AcknowledgeType.ACCEPT:
            new = Cell(RecordState.ACKNOWLEDGED)
        elif kind is AcknowledgeType.GAP:
            new = Cell(RecordState.ARCHIVED)
        elif kind is AcknowledgeType.REJECT:
            new = self._given_up(cell)
        else:
            new = self._released(cell, counts=not self.settings.counts_failures_only)
        self.cells[offset] = replace(new, token=token, prior=cell)

    def _released(self, cell: Cell, *, counts: bool = True) -> Cell:
        count = cell.count if counts else cell.count - 1
        if count >= self.settings.delivery_count_limit:
            return self._given_up(cell)
        wait_ms = min(self.settings.retry_backoff_ms * 2 ** (cell.count - 1), 120)
        return Cell(AVAILABLE, count, until_ms=self.now_ms + wait_ms if wait_ms else 0)

    def _given_up(self, cell: Cell) -> Cell:
        if self.settings.dead_letter_topic:
            return Cell(RecordState.ARCHIVING, cell.count)
        return Cell(RecordState.ARCHIVED)

    @precondition(lambda self: self.writes)
    @rule(is_stored=st.sampled_from([True, True, True, False]))
    def finish_a_write(self, is_stored: bool) -> None:
        change, _ = self.writes.pop(0)
        token = change.token
        assert change.delta is not None
        if is_stored:
            self.store.apply(change.delta)
        ended = []
        for offset in self._window():
            cell = self.cells[offset]
            if cell.token != token:
                continue
            assert cell.prior is not None
            if is_stored:
                self.cells[offset] = replace(cell, token=0, prior=None)
                if cell.state is RecordState.ACKNOWLEDGED:
                    self.answered.add(offset)
            elif cell.prior.until_ms <= self.now_ms:
                self.cells[offset] = self._released(cell.prior)
                ended.append(offset)
            else:
                self.cells[offset] = cell.prior
        self._trim()
        self._carry_out(self.partition.stored(token, is_stored=is_stored, now_ms=self.now_ms))

    @rule(ms=st.sampled_from([1, 30, 60, 100]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        change = self.partition.expire(self.now_ms)
        for offset in self._window():
            cell = self.cells[offset]
            if cell.token or not 0 < cell.until_ms <= self.now_ms:
                continue
            self.cells[offset] = self._released(cell) if cell.state is ACQUIRED else replace(cell, until_ms=0)
        self._trim()
        self._carry_out(change)

    @rule(member=st.sampled_from(MEMBERS), in_order=st.booleans())
    def member_goes(self, member: str, in_order: bool) -> None:
        change = self.partition.release_member(member, self.now_ms, in_order=in_order)
        for offset in self._window():
            cell = self.cells[offset]
            if cell.state is ACQUIRED and cell.owner == member and not cell.token:
                self.cells[offset] = Cell(AVAILABLE, cell.count - 1) if in_order else self._released(cell)
        self._trim()
        self._carry_out(change)

    @rule(records=st.integers(0, 8))
    def log_start_moves(self, records: int) -> None:
        offset = min(self.start + records - 4, self.log_end)
        self.log_start = max(self.log_start, offset)
        change = self.partition.log_start_moved(offset)
        self.start = max(self.start, offset)
        self._trim()
        self._carry_out(change)

    @rule(limit=st.integers(1, 6))
    def alter_limit(self, limit: int) -> None:
        self.settings = replace(self.settings, delivery_count_limit=limit)
        self.limit_highest = max(self.limit_highest, limit)
        self.partition.settings = self.settings

    @precondition(lambda self: self.letters)
    @rule()
    def write_a_dead_letter(self) -> None:
        first, last = self.letters.pop(0)
        change = self.partition.dead_letter_written(first, last)
        for offset in range(max(first, self.start), last + 1):
            assert self.cells[offset].state is RecordState.ARCHIVING, (offset, self.cells[offset])
            self.cells[offset] = Cell(RecordState.ARCHIVED)
        self._trim()
        self._carry_out(change)

    @rule(really=st.sampled_from([False, False, False, True]))
    def another_leader_takes_over(self, really: bool) -> None:
        if not really:
            return
        # What the store did not get is lost: deliveries, and writes that nobody was answered about.
        self._load()

    # What must hold.

    @invariant()
    def the_partition_says_what_the_model_says(self) -> None:
        if not hasattr(self, "partition"):
            return
        assert self.partition.start_offset == self.start, "(c) the start is where the first undone record is"
        runs = self.partition._window.runs
        found = [
            (mark.state, mark.delivery_count, mark.until_ms, mark.owner, mark.token)
            for first, last, mark in runs.pieces(0, runs.end)
            for _ in range(first, last + 1)
        ]
        cells = [self.cells[offset] for offset in range(self.start, runs.end)]
        expected = [(cell.state, cell.count, cell.until_ms, cell.owner, cell.token) for cell in cells]
        assert found == expected
        for offset in range(runs.end, self.log_end):
            assert self.cells[offset] == Cell(), (offset, self.cells[offset])

    @invariant()
    def memory_follows_the_runs(self) -> None:
        if not hasattr(self, "partition"):
            return
        runs = self.partition._window.runs
        assert len(list(groupby(runs.marks))) == len(runs), "(f) equal neighbours are one run"

    @invariant()
    def the_lag_is_what_is_not_done(self) -> None:
        if not hasattr(self, "partition"):
            return
        undone = sum(self.cells[offset].state not in DONE for offset in self._window())
        lag = self.log_end - self.partition.start_offset - self.partition.delivery_complete_count
        assert lag == undone, "(g)"

    @invariant()
    def what_is_stored_gives_the_same_runs(self) -> None:
        if not hasattr(self, "partition"):
            return
        assert self.store.start <= self.start, "(c) a new leader begins no later"
        for offset in sorted(self.answered):
            if offset >= self.store.start:
                stored_state = self.store.cells.get(offset, (AVAILABLE,))[0]
                assert stored_state is RecordState.ACKNOWLEDGED, f"(b) a new leader offers {offset} again"
        unsure = {
            offset
            for ranges in [
                self.partition._ledger.unstored,
                *(write.standing for write in self.partition._ledger.writes.values()),
            ]
            for first, last in ranges
            for offset in range(first, last + 1)
        }
        for offset in self._window():
            cell = self.cells[offset]
            if offset in unsure:
                continue
            if cell.token:
                assert cell.prior is not None
                cell = cell.prior
            if cell.state is ACQUIRED:
                cell = Cell(AVAILABLE, cell.count - 1)
            state, count, until_ms = self.store.cells.get(offset, (AVAILABLE, 0, 0))
            if until_ms <= self.now_ms:
                until_ms = 0
            held_until_ms = cell.until_ms if cell.until_ms > self.now_ms else 0
            assert (state, count, until_ms) == (cell.state, cell.count, held_until_ms), f"(h) {offset}"

    def _carry_out(self, change: Change) -> None:
        if change.token:
            self.writes.append((change, ""))
        self.letters += [letter[:2] for letter in change.dead_letters]

    def _is_first_of_its_key(self, offset: int) -> bool:
        key = _key(offset)
        if not self.is_ordered_by_key or not key:
            return True
        aborted = {offset for span in self.spans if span.is_aborted for offset in range(span[0], span[1] + 1)}
        return not any(
            _key(other) == key
            and (self.cells[other].state in (AVAILABLE, ACQUIRED) or self.cells[other].token)
            and other not in aborted
            for other in range(self.start, offset)
        )

    def _held(self, members: object) -> int:
        return sum(
            cell.state is ACQUIRED and not cell.token and cell.owner in members  # type: ignore[operator]
            for cell in (self.cells[offset] for offset in self._window())
        )

    def _window(self) -> range:
        return range(self.start, self.log_end)

    def _trim(self) -> None:
        while self.start < self.log_end and self.cells[self.start].is_done:
            self.start += 1

    def _state(self, offset: int) -> RecordState:
        if offset < self.partition.start_offset:
            return RecordState.ARCHIVED
        return next(mark.state for _, _, mark in self.partition._window.runs.pieces(offset, offset))


class OrderedModel(Model):
    is_ordered_by_key = True


def _key(offset: int) -> int:
    """A few keys, and every fourth record without one."""
    return offset * 7 % 11 % 4


Model.TestCase.settings = hypothesis_settings(max_examples=120, stateful_step_count=50, deadline=None)
TestModel = Model.TestCase
OrderedModel.TestCase.settings = Model.TestCase.settings
TestOrderedModel = OrderedModel.TestCase
