"""What each idempotent producer wrote last: the guard against duplicates and gaps, and its snapshots.

Five batches are remembered for a producer, as many as a client has in flight. A producer that is not known
(new, or idle past its expiry) may start at any sequence. `.snapshot` files are Kafka's: version, CRC-32C,
entries.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from millrace.core.ids import NO_EPOCH
from millrace.log.errors import OutOfOrderSequence, ProducerFenced
from millrace.wire.batch_header import CONTROL_BIT, NO_SEQUENCE, TRANSACTIONAL_BIT

BATCHES_REMEMBERED: Final = 5
SEQUENCE_MAX: Final = 2**31 - 1

_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_SNAPSHOT_COUNT: Final = struct.Struct(">i")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION: Final = 1


class RememberedBatch(NamedTuple):
    """A batch that its producer may send again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    """Last offset minus first offset."""
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """What one producer wrote last, in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "last_append_ms",
        "last_sequence",
        "last_timestamp",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_sequence = NO_SEQUENCE
        self.batches: list[tuple[int, int, int, int]] = []
        """The fields of RememberedBatch in plain tuples, because every append adds one."""
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.last_append_ms = -1
        """When this broker last heard of the producer: old record timestamps must not make it expire."""
        self.current_txn_first_offset = -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1][1] if self.batches else -1

    def advance(
        self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int, now_ms: int
    ) -> None:
        """Remember the producer's next batch, of the epoch that this entry is for."""
        self.last_sequence = last_sequence
        self.last_timestamp = timestamp
        self.last_append_ms = now_ms
        batches = self.batches
        batches.append((last_sequence, last_offset, offset_delta, timestamp))
        if len(batches) > BATCHES_REMEMBERED:
            del batches[0]


class ProducerStates:
    """All producers of one partition. Does no I/O; the owner appends, saves and loads."""

    __slots__ = ("ended", "entries", "first_unstable_offset")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.first_unstable_offset = -1
        """Where the oldest open transaction begins, or -1."""
        self.ended: deque[tuple[int, int]] = deque()
        """First and last offset of transactions whose markers were not committed when last looked at, in the
        order of their markers."""

    def transaction_ended(self, first_offset: int, last_offset: int, high_watermark: int) -> None:
        """Remember a transaction until its marker, at `last_offset`, is committed. This also forgets those
        whose markers are committed by now: where nobody reads, nobody asks what is stable."""
        self._forget_committed(high_watermark)
        self.ended.append((first_offset, last_offset))

    def stable_before(self, high_watermark: int) -> int:
        """Up to where every transaction has ended for good: with a marker below the high watermark."""
        self._forget_committed(high_watermark)
        unstable = self.first_unstable_offset
        for first_offset, _ in self.ended:
            if unstable < 0 or first_offset < unstable:
                unstable = first_offset
        return unstable if 0 <= unstable < high_watermark else high_watermark

    def _forget_committed(self, high_watermark: int) -> None:
        ended = self.ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()

    def open_since(self, producer_id: int) -> int:
        """Where the producer's open transaction begins, or -1."""
        entry = self.entries.get(producer_id)
        return -1 if entry is None else entry.current_txn_first_offset

    def check(
        self, producer_id: int, *, epoch: int, first_sequence: int, last_sequence: int
    ) -> RememberedBatch | None:
        """Judge a batch: the original if it is a duplicate, None if it may be appended, or raise."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch == NO_EPOCH:
            return None
        if epoch == entry.epoch:
            for batch in entry.batches:
                if batch[0] == last_sequence and subtract_from_sequence(batch[0], batch[2]) == first_sequence:
                    return RememberedBatch(*batch)
        elif epoch < entry.epoch:
            raise ProducerFenced(producer_id, epoch=epoch, current_epoch=entry.epoch)
        expected = next_sequence(entry.last_sequence) if epoch == entry.epoch else 0
        if first_sequence != expected:
            raise OutOfOrderSequence(producer_id, expected=expected, sequence=first_sequence)
        return None

    def record(self, header: tuple[int, ...], last_offset: int, timestamp: int, now_ms: int) -> None:
        """Remember a producer's data batch: its header as it was sent, and what it got in the log."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = header
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self.entry_in(producer_id, epoch)
        entry.advance(add_to_sequence(sequence, delta), last_offset, delta, timestamp, now_ms)
        if attributes & TRANSACTIONAL_BIT and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = last_offset - delta
            if self.first_unstable_offset < 0:
                self.first_unstable_offset = last_offset - delta

    def entry_in(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry in this epoch; an entry of another epoch loses its batches."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        return entry

    def expect(self, producer_id: int, *, epoch: int, sequence: int, now_ms: int) -> None:
        """Note that a batch could not be stored: a producer that is not known yet must send it first. Else a
        batch in flight behind it would count as the producer's first, and the batch itself as an old one."""
        if producer_id not in self.entries:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
            entry.last_sequence = subtract_from_sequence(sequence, 1) if sequence > 0 else NO_SEQUENCE
            entry.last_append_ms = now_ms

    def record_marker(
        self, producer_id: int, *, epoch: int, coordinator_epoch: int, timestamp: int, now_ms: int
    ) -> int:
        """End the producer's transaction; returns its first offset, or -1 if none was open."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(epoch)
        elif epoch > entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.last_sequence = NO_SEQUENCE
        first_offset = entry.current_txn_first_offset
        entry.current_txn_first_offset = -1
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        entry.last_append_ms = now_ms
        self._find_first_unstable()
        return first_offset

    def remember_older(self, header: tuple[int, ...]) -> None:
        """Add an earlier batch of a known producer that its snapshot, which holds only one, left out."""
        base_offset, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, sequence, _ = header
        entry = self.entries.get(producer_id)
        if entry is None or attributes & CONTROL_BIT or epoch != entry.epoch:
            return
        last_offset = base_offset + delta
        older = (add_to_sequence(sequence, delta), last_offset, delta, timestamp)
        position = sum(1 for batch in entry.batches if batch[1] < last_offset)
        if position == len(entry.batches) or entry.batches[position][1] == last_offset:
            return
        entry.batches.insert(position, older)
        if len(entry.batches) > BATCHES_REMEMBERED:
            del entry.batches[0]

    def correct_by(self, replayed: ProducerStates, *, ended_before: int) -> None:
        """Take over what all batches say, some of which were not there when this state was made. This state
        keeps who wrote when, and batches from before the replay."""
        for producer_id, right in replayed.entries.items():
            entry = self.entries.get(producer_id)
            if entry is None:
                self.entries[producer_id] = right
                continue
            first_offset = entry.current_txn_first_offset
            if first_offset >= 0 and right.current_txn_first_offset != first_offset:
                # The transaction's marker is among the batches that came back, and perhaps not committed yet.
                self.ended.appendleft((first_offset, ended_before - 1))
            older = [] if entry.epoch != right.epoch else entry.batches
            batches = {batch[1]: batch for batch in (*older, *right.batches)}
            entry.batches = [batches[offset] for offset in sorted(batches)][-BATCHES_REMEMBERED:]
            entry.epoch = right.epoch
            entry.last_sequence = right.last_sequence
            entry.last_timestamp = right.last_timestamp
            entry.coordinator_epoch = right.coordinator_epoch
            entry.current_txn_first_offset = right.current_txn_first_offset
        self._find_first_unstable()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers that were idle for too long; returns how many."""
        idle = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset < 0
            and now_ms - max(entry.last_timestamp, entry.last_append_ms) >= expiration_ms
        ]
        for producer_id in idle:
            del self.entries[producer_id]
        return len(idle)

    def truncate_from_start(self, log_start_offset: int) -> None:
        """Close what can no longer end: transactions that began below the log's start."""
        for entry in self.entries.values():
            if 0 <= entry.current_txn_first_offset < log_start_offset:
                entry.current_txn_first_offset = log_start_offset
        if any(first_offset < log_start_offset for first_offset, _ in self.ended):
            # The last stable offset is never below the log's start.
            self.ended = deque((max(first, log_start_offset), last) for first, last in self.ended)
        self._find_first_unstable()

    def clear(self) -> None:
        self.entries.clear()
        self.ended.clear()
        self.first_unstable_offset = -1

    def _find_first_unstable(self) -> None:
        open_offsets = (entry.current_txn_first_offset for entry in self.entries.values())
        self.first_unstable_offset = min((offset for offset in open_offsets if offset >= 0), default=-1)


def next_sequence(sequence: int) -> int:
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


def add_to_sequence(sequence: int, delta: int) -> int:
    """Sequences wrap around from 2^31-1 to 0. NO_SEQUENCE stays what it is."""
    if sequence < 0:
        return sequence
    result = sequence + delta
    return result if result <= SEQUENCE_MAX else result - SEQUENCE_MAX - 1


def subtract_from_sequence(sequence: int, delta: int) -> int:
    if sequence < 0:
        return sequence
    result = sequence - delta
    return result if result >= 0 else result + SEQUENCE_MAX + 1


def encode_snapshot(states: ProducerStates) -> bytes:
    parts = [_SNAPSHOT_COUNT.pack(len(states.entries))]
    for producer_id, entry in states.entries.items():
        _, last_offset, offset_delta, _ = entry.batches[-1] if entry.batches else (-1, -1, 0, -1)
        parts.append(
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                last_offset,
                offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    body = b"".join(parts)
    return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, *, now_ms: int) -> ProducerStates | None:
    """The producers of a snapshot, or None if it is damaged."""
    if len(data) < _SNAPSHOT_HEAD.size + _SNAPSHOT_COUNT.size:
        return None
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    body = memoryview(data)[_SNAPSHOT_HEAD.size :]
    if version != _SNAPSHOT_VERSION or crc32c(body) != crc:
        return None
    (count,) = _SNAPSHOT_COUNT.unpack_from(body)
    rows = body[_SNAPSHOT_COUNT.size :]
    if len(rows) != count * _SNAPSHOT_ENTRY.size:
        return None
    states = ProducerStates()
    _fill(states, _SNAPSHOT_ENTRY.iter_unpack(rows), now_ms)
    return states


def _fill(states: ProducerStates, rows: Iterable[tuple[int, ...]], now_ms: int) -> None:
    for (
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        delta,
        timestamp,
        coordinator_epoch,
        txn_first,
    ) in rows:
        entry = ProducerEntry(epoch)
        entry.last_sequence = last_sequence
        entry.last_timestamp = timestamp
        entry.last_append_ms = now_ms
        entry.coordinator_epoch = coordinator_epoch
        entry.current_txn_first_offset = txn_first
        if last_offset >= 0:
            entry.batches.append((last_sequence, last_offset, delta, timestamp))
        states.entries[producer_id] = entry
    states._find_first_unstable()
