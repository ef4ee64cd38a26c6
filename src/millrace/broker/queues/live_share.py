"""One share partition as this broker serves it: the rules, the log that they speak of, the state that is
stored, and who waits.

Who waits, waits in a line. Whatever happens (records arrive, locks end, somebody acknowledges), only the
first in the line is woken; when it has taken what it wants and something is left, it wakes the next. So a
thousand members at one partition cost no more for each record than one does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from millrace.broker.queues.batch_headers import (
    Found,
    FoundBatch,
    find_batches,
    slices_of,
    without_aborted,
)
from millrace.broker.queues.key_hashes import hashes_of
from millrace.broker.queues.stops import stop_to_tell, tell_of_stop
from millrace.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from millrace.core.errors import MillraceError
from millrace.core.lanes import Waits
from millrace.groups.errors import GroupNotFound
from millrace.log.errors import OffsetOutOfRange, StorageError
from millrace.log.partition.aborted_bounds import learn_aborted
from millrace.queues.share_partition.acknowledging import AckRange
from millrace.queues.share_partition.acquiring import BatchSpan
from millrace.queues.share_partition.changes import AcquiredRun, Change, DeadLetter, Stop
from millrace.queues.share_partition.model import (
    AcknowledgeType,
    AcquireMode,
    Delta,
    ShareKey,
    StoredState,
)
from millrace.queues.share_partition.partition import SharePartition
from millrace.queues.state.errors import LeaderEpochFenced, StateEpochFenced, UnknownSharePartition

if TYPE_CHECKING:
    from millrace.log.disk.volume import Volume
    from millrace.log.partition.log_slice import LogSlice
    from millrace.log.partition.partition_log import PartitionLog
    from millrace.log.segments.segment import Segment
    from millrace.replica.partition import Partition
    from millrace.replica.waiting import Newest
    from millrace.wire.share_codec import AckBatch

LOOKS_MAX: Final = 8
"""How often a fetch looks further when all that it found was compacted away, aborted or too old."""
_KINDS: Final = tuple(AcknowledgeType)
_EQUALS: Final = re.compile(rb"(.)\1*", re.DOTALL)
"""Types of acknowledgements that follow each other and are the same."""

Written: TypeAlias = "asyncio.Future[MillraceError | None] | MillraceError | None"
"""What became of a write: None when it is committed, an error, or a future for either."""


class ShareFenced(MillraceError):
    """This broker may speak for the share partition no more: who asks has to ask the leader of now."""

    def __init__(self, key: ShareKey, reason: str) -> None:
        super().__init__(f"share partition {key.partition} of group {key.group_id}: {reason}")


class StateStore(Protocol):
    """Where the state of share partitions is kept."""

    async def read(self, key: ShareKey, leader_epoch: int) -> StoredState | MillraceError: ...
    def write(self, key: ShareKey, *, state_epoch: int, leader_epoch: int, delta: Delta) -> Written: ...


class ShareWaiter(Protocol):
    """A fetch that waits for records of a share partition."""

    member_id: str

    def wake(self) -> None:
        """There may be something for it now. It passes on what it does not take (`LiveShare.pass_on`)."""

    def permissions_changed(self) -> None:
        """Answer now if what this fetch waits for may not be read any more."""


class ShareStats:
    """What has happened to records; plain numbers, because every fetch and acknowledgement adds to them."""

    __slots__ = (
        "acquired",
        "acquisitions",
        "dead_lettered",
        "lock_timeouts",
        "redelivered",
        "refused_acks",
        "returned",
        *(kind.name.lower() for kind in AcknowledgeType),
    )

    def __init__(self) -> None:
        self.acquisitions = 0
        """How many fetches were given any."""
        self.acquired = 0
        self.redelivered = 0
        """Of those acquired, the ones that were delivered before."""
        self.lock_timeouts = 0
        """Records whose lock has ended."""
        self.returned = 0
        """Records of members that closed their session or lost it."""
        self.dead_lettered = 0
        self.refused_acks = 0
        self.gap = self.accept = self.release = self.reject = self.renew = 0
        """Records that were acknowledged, by what was said of them."""

    def count_acks(self, ranges: Sequence[AckRange]) -> None:
        for first, last, kind in ranges:
            name = _NAMES[kind]
            setattr(self, name, getattr(self, name) + last - first + 1)


_NAMES: Final = {kind: kind.name.lower() for kind in AcknowledgeType}


class Look(NamedTuple):
    """What a member could be given of a share partition: nothing has changed yet."""

    ranges: Sequence[tuple[int, int]]
    found: Found
    unread: tuple[PartitionLog, list[Segment]] | None = None
    """Indexes of aborted transactions that a thread has to read before."""
    unlearned: Sequence[FoundBatch] = ()
    """Batches whose keys a thread has to find out before."""

    @property
    def is_complete(self) -> bool:
        """Whether no thread has to read anything before records can be acquired."""
        return self.found.cold is None and self.unread is None and not self.unlearned


class Taken(NamedTuple):
    """What a member was given."""

    runs: Sequence[AcquiredRun]
    records: Sequence[bytes | LogSlice]
    size_bytes: int
    records_count: int


class Home(Protocol):
    """What all share partitions of a broker have in common."""

    store: StateStore

    def now_ms(self) -> int: ...
    def arm(self, share: LiveShare, deadline_ms: int) -> None:
        """Have `LiveShare.expire` called then."""

    def fenced(self, share: LiveShare, error: MillraceError) -> None:
        """Serve it no more."""

    def give_up(self, share: LiveShare, letters: Sequence[DeadLetter], *, is_again: bool = False) -> None:
        """Write dead letters, and say so by `LiveShare.dead_letter_written`; `is_again` if an earlier leader
        may have written some of them."""

    def letters_written(self, share: LiveShare) -> None:
        """No dead letter of it waits any more."""

    def stopped(self, stop: Stop) -> None:
        """Count that delivery stopped somewhere."""


class LiveShare:
    """One share partition of this broker, from the first fetch until somebody else leads it or nobody asks
    for it any more."""

    __slots__ = (
        "_armed_ms",
        "_home",
        "error",
        "key",
        "leader_epoch",
        "partition",
        "rules",
        "state_epoch",
        "stats",
        "stop",
        "waiters",
    )

    def __init__(self, key: ShareKey, partition: Partition, home: Home, stats: ShareStats) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state_epoch = -1
        self.rules: SharePartition | None = None
        """None while the stored state is being read."""
        self.error: MillraceError | None = None
        """Why it is not served any more."""
        self.waiters: dict[ShareWaiter, None] = {}
        self.stats = stats
        self.stop: Stop | None = None
        """Why nothing is delivered, as it was told last."""
        self._home = home
        self._armed_ms: int | None = None

    def begin(self, rules: SharePartition, state_epoch: int) -> None:
        """The stored state is there: serve those who have waited for it."""
        self.rules = rules
        self.state_epoch = state_epoch
        letters = rules.waiting_dead_letters()
        if letters:
            self._home.give_up(self, letters, is_again=True)
        self._heed_log_start()
        self._watch_clock()
        self._tell_of_stops()
        self.wake()

    def end(self, error: MillraceError) -> None:
        """Serve it no more, and tell those who wait why."""
        self.error = error
        waiters, self.waiters = self.waiters, {}
        self.partition.fetch_waiters.pop(self, None)
        for waiter in waiters:
            waiter.wake()

    @property
    def is_served(self) -> bool:
        """Whether this broker still speaks for it."""
        partition = self.partition
        return self.error is None and partition.is_leader and partition.leader_epoch == self.leader_epoch

    @property
    def limit_offset(self) -> int:
        """Up to where the group may read."""
        rules = self.rules
        if rules is not None and rules.settings.reads_committed:
            return self.partition.last_stable_offset
        return self.partition.log.high_watermark

    # Fetching.

    def look(
        self,
        member_id: str,
        *,
        records_max: int,
        bytes_max: int,
        waiting: int = 0,
        looks_left: int = LOOKS_MAX,
    ) -> Look | None:
        """What a member could be given now, while so many others wait; None if there is nothing. Raises what
        a read of the log raises."""
        rules = self.rules
        assert rules is not None, self.key
        log, limit_offset = self.partition.log, self.limit_offset
        ranges = rules.candidates(
            member_id,
            self._home.now_ms(),
            limit_offset=limit_offset,
            records_max=records_max,
            waiting=waiting,
        )
        if not ranges:
            return None
        try:
            found = find_batches(
                log, ranges, limit_offset=limit_offset, records_max=records_max, bytes_max=bytes_max
            )
        except OffsetOutOfRange:
            # Retention was faster than the group.
            if not looks_left or not self._heed_log_start():
                raise
            return self.look(
                member_id,
                records_max=records_max,
                bytes_max=bytes_max,
                waiting=waiting,
                looks_left=looks_left - 1,
            )
        if found.missing:
            self._archive(found.missing)
            if not found.batches and found.cold is None:
                if not looks_left:
                    return None
                return self.look(
                    member_id,
                    records_max=records_max,
                    bytes_max=bytes_max,
                    waiting=waiting,
                    looks_left=looks_left - 1,
                )
        if found.batches and rules.settings.reads_committed and (unread := log.unread_aborted()):
            return Look(ranges, found, (log, unread))
        if found.batches and rules.settings.is_ordered_by_key:
            firsts = {span.first_offset for span in rules.unlearned(_spans(found.batches, found.batches))}
            return Look(ranges, found, None, [each for each in found.batches if each.first_offset in firsts])
        return Look(ranges, found)

    async def complete(self, look: Look, volume: Volume) -> None:
        """Have threads read what a look could not wait for."""
        loop = asyncio.get_running_loop()
        cold = look.found.cold
        if cold is not None:
            assert cold.file is not None
            lane = volume.lane(Waits.READ, cold.file.path)
            with suppress(StorageError):
                # Whoever reads it next meets the same failure.
                await loop.run_in_executor(lane, cold.warm)
        if look.unread is not None:
            await learn_aborted(volume, *look.unread)
        if look.unlearned:
            learned = await loop.run_in_executor(None, hashes_of, look.unlearned)
            if self.rules is not None and self.error is None:
                for first_offset, hashes in learned:
                    self.rules.learn_keys(first_offset, hashes)

    def acquire(
        self,
        member_id: str,
        look: Look,
        *,
        records_max: int,
        batch_size: int,
        mode: AcquireMode,
        waiting: int = 0,
    ) -> Taken | None:
        """Give a member what a look has found, before anything else has happened. None if nothing was left of
        it: what was compacted away, aborted or too old is done now. So many others wait."""
        rules, batches = self.rules, look.found.batches
        assert rules is not None, self.key
        kept = batches
        if rules.settings.reads_committed:
            kept = without_aborted(self.partition.log, batches)
        runs, change = rules.acquire(
            member_id,
            _spans(batches, kept),
            ranges=look.ranges,
            records_max=records_max,
            batch_size=batch_size,
            mode=mode,
            now_ms=self._home.now_ms(),
            waiting=waiting,
        )
        self._carry_out(change)
        self._watch_clock()
        if not runs:
            return None
        count = redelivered = 0
        for first, last, delivery_count in runs:
            count += last - first + 1
            if delivery_count > 1:
                redelivered += last - first + 1
        stats = self.stats
        stats.acquisitions += 1
        stats.acquired += count
        stats.redelivered += redelivered
        given = kept if len(kept) == 1 else _touched(kept, runs)
        return Taken(runs, slices_of(given), sum([batch.size_bytes for batch in given]), count)

    # Acknowledging.

    def acknowledge(self, member_id: str, acks: Sequence[AckBatch]) -> Written:
        """Let a member say what has become of records: all of it counts, or nothing."""
        rules = self.rules
        if rules is None:
            return CoordinatorNotAvailable(f"the state of {self.key} is being read")
        ranges = list(ack_ranges(acks, rules.start_offset, rules.end_offset))
        change = rules.acknowledge(member_id, ranges, self._home.now_ms())
        if isinstance(change, MillraceError):
            self.stats.refused_acks += 1
            return change
        self.stats.count_acks(ranges)
        self._watch_clock()
        if rules.settings.breaker_ratio:
            self._tell_of_stops()
        return self._carry_out(change)

    def release(self, member_id: str, *, in_order: bool) -> None:
        """A member is gone: others may have what it held."""
        rules = self.rules
        if rules is not None:
            before = rules.acquired_count
            self._carry_out(rules.release_member(member_id, self._home.now_ms(), in_order=in_order))
            self.stats.returned += before - rules.acquired_count
            self._watch_clock()
            self._tell_of_stops()

    def dead_letter_written(self, first: int, last: int) -> None:
        rules = self.rules
        if rules is not None and self.error is None:
            self.stats.dead_lettered += last - first + 1
            self._carry_out(rules.dead_letter_written(first, last))
            self._tell_of_stops()
            if not rules.archiving_count:
                self._home.letters_written(self)

    # Time.

    def expire(self) -> None:
        """Look at locks and waits that have ended."""
        self._armed_ms = None
        rules = self.rules
        if rules is not None and self.error is None:
            before = rules.acquired_count
            self._carry_out(rules.expire(self._home.now_ms()))
            self.stats.lock_timeouts += max(before - rules.acquired_count, 0)
            self._watch_clock()
            self._tell_of_stops()

    def settings_changed(self) -> None:
        """Other limits may let more through, or sooner."""
        self._watch_clock()
        self._tell_of_stops()
        self.wake()

    def _watch_clock(self) -> None:
        assert self.rules is not None, self.key
        deadline_ms = self.rules.next_deadline_ms()
        if deadline_ms is not None and (self._armed_ms is None or deadline_ms < self._armed_ms):
            self._armed_ms = deadline_ms
            self._home.arm(self, deadline_ms)

    def _tell_of_stops(self) -> None:
        """Say in the log that delivery stops, why, and when it goes on."""
        rules = self.rules
        assert rules is not None, self.key
        stop = stop_to_tell(rules, self.stop, self._home.now_ms())
        if stop is not self.stop:
            self.stop = stop
            tell_of_stop(self.key.group_id, self.partition, rules, stop)
            if stop is not None:
                self._home.stopped(stop)

    # Waiting.

    def add_waiter(self, waiter: ShareWaiter) -> None:
        self.waiters[waiter] = None
        self.partition.fetch_waiters[self] = None

    def remove_waiter(self, waiter: ShareWaiter) -> None:
        self.waiters.pop(waiter, None)
        if not self.waiters:
            self.partition.fetch_waiters.pop(self, None)

    def wake(self) -> None:
        """There may be something to acquire: let the first who waits look."""
        for waiter in self.waiters:
            waiter.wake()
            return

    def pass_on(self, waiter: ShareWaiter) -> None:
        """A fetch that was woken has taken what it wants, or what it may: let the next one look if there is
        something for it."""
        rules = self.rules
        if rules is None or not self.waiters or self.error is not None:
            return
        now_ms, limit_offset = self._home.now_ms(), self.limit_offset
        # What the first may not have (it holds too much), the next one perhaps may.
        is_equal = not rules.settings.member_record_locks_max
        waiting = len(self.waiters) - 1
        line = iter(self.waiters)
        if waiter in self.waiters:
            # It goes on waiting, since there is too little for it. Those before it have looked: only those
            # behind it are asked, or two of them would wake each other without end.
            for each in line:
                if each is waiter:
                    break
        for other in line:
            if rules.candidates(
                other.member_id, now_ms, limit_offset=limit_offset, records_max=1, waiting=waiting
            ):
                other.wake()
                return
            if is_equal:
                return

    # As one who waits for the log.

    def more_records(self, size_bytes: int, newest: Newest | None = None) -> None:
        self.wake()

    def changed(self) -> None:
        partition = self.partition
        if not partition.is_leader or partition.leader_epoch != self.leader_epoch:
            self._home.fenced(self, ShareFenced(self.key, "another broker leads its partition, or will"))
        elif self.rules is not None:
            self._heed_log_start()
            self.wake()

    def permissions_changed(self) -> None:
        for waiter in list(self.waiters):
            waiter.permissions_changed()

    # Storing.

    def _archive(self, missing: Sequence[tuple[int, int]]) -> None:
        """Note that nothing is left in the log of what could be delivered again."""
        assert self.rules is not None, self.key
        _, change = self.rules.acquire(
            "",
            [BatchSpan(first, last, is_aborted=True) for first, last in missing],
            ranges=missing,
            records_max=1,
            batch_size=1,
            mode=AcquireMode.BATCH_OPTIMIZED,
            now_ms=self._home.now_ms(),
        )
        self._carry_out(change)

    def _heed_log_start(self) -> bool:
        """Take over that the log begins later than the group has come. Whether it does."""
        rules, log_start_offset = self.rules, self.partition.log.log_start_offset
        assert rules is not None, self.key
        if log_start_offset <= rules.start_offset:
            return False
        self._carry_out(rules.log_start_moved(log_start_offset))
        return True

    def _carry_out(self, change: Change) -> Written:
        token, delta, letters, wakes = change
        if letters:
            self._home.give_up(self, letters)
            self._tell_of_stops()
        if wakes and self.waiters:
            self.wake()
        if delta is None:
            return None
        written = self._home.store.write(
            self.key, state_epoch=self.state_epoch, leader_epoch=self.leader_epoch, delta=delta
        )
        if isinstance(written, asyncio.Future):
            written.add_done_callback(lambda future: self._stored(token, future.result()))
            return written
        self._stored(token, written)
        return written

    def _stored(self, token: int, error: MillraceError | None) -> None:
        rules = self.rules
        assert rules is not None, self.key
        self._carry_out(rules.stored(token, is_stored=error is None, now_ms=self._home.now_ms()))
        if isinstance(error, LeaderEpochFenced | StateEpochFenced | GroupNotFound | UnknownSharePartition):
            self._home.fenced(self, as_told(self.key, error))


def ack_ranges(acks: Sequence[AckBatch], start_offset: int, end_offset: int) -> Iterator[AckRange]:
    """What acknowledgements say, in as few ranges as possible. What lies below the start is done and left
    out. What was never delivered is refused by the rules: it is one range, whatever is said of it, so that
    nobody can make the broker count to a million million."""
    for first, last, types in acks:
        if last < start_offset:
            continue
        if len(types) == 1 or last >= end_offset:
            yield AckRange(first, last, _KINDS[types[0]])
            continue
        begin = max(start_offset - first, 0)
        for equals in _EQUALS.finditer(types, begin):
            yield AckRange(first + equals.start(), first + equals.end() - 1, _KINDS[types[equals.start()]])


def as_told(key: ShareKey, error: MillraceError) -> MillraceError:
    """What a client is told of an error of the state's coordinator: it knows leaders, and no state."""
    if isinstance(error, LeaderEpochFenced | StateEpochFenced):
        return ShareFenced(key, str(error))
    if isinstance(error, NotCoordinator | CoordinatorLoading):
        return CoordinatorNotAvailable(str(error))
    return error


def _spans(batches: Sequence[FoundBatch], kept: Sequence[FoundBatch]) -> list[BatchSpan]:
    if len(kept) == len(batches):
        return [BatchSpan(batch.first_offset, batch.last_offset, batch.max_timestamp_ms) for batch in batches]
    committed = {batch.first_offset for batch in kept}
    return [
        BatchSpan(
            batch.first_offset,
            batch.last_offset,
            batch.max_timestamp_ms,
            is_aborted=batch.first_offset not in committed,
        )
        for batch in batches
    ]


def _touched(batches: Sequence[FoundBatch], runs: Sequence[AcquiredRun]) -> list[FoundBatch]:
    """The batches that hold any of the records; both are in order."""
    touched: list[FoundBatch] = []
    number = 0
    for batch in batches:
        while number < len(runs) and runs[number].last_offset < batch.first_offset:
            number += 1
        if number == len(runs):
            break
        if runs[number].first_offset <= batch.last_offset:
            touched.append(batch)
    return touched
