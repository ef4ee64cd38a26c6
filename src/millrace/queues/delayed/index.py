"""The index of one partition of the store: what is pending, by due time. Derived data, in files.

    delayed-index/
      checkpoint     what the files hold, and up to which store offset: the only file that is believed
      m29384755      entries (due ms, store offset: 16 bytes) of one minute, in the order of their arrival
      h489800        the same for one hour, for what is more than a day away
      m29384755.done store offsets (8 bytes) of its entries that are not pending any more
      r3             hashes (8 bytes) of the ids that came lately
      c3             hashes of ids that were cancelled, and where (16 bytes)

Files only grow, and hold as much as the checkpoint says; what is behind that was written before a crash, and
is written again. Sums in the checkpoint find damage. Then, or when there is no index, whoever asks is told
to read the store from its start. Nothing here is on the disk for sure: the log is.

All methods block. They are called off the loop, one after the other.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from millrace.core.errors import MillraceError
from millrace.log.disk.volume import Volume
from millrace.log.errors import FileMissing
from millrace.queues.delayed.cancellations import GENERATION_MAX
from millrace.queues.delayed.checkpoint import Checkpoint, FileSum, decode_checkpoint, encode_checkpoint
from millrace.queues.delayed.codec import Entry
from millrace.queues.delayed.state import StoreState
from millrace.queues.delayed.wheel import ENTRY

DIRECTORY: Final = "delayed-index"
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000
BUFFER_BYTES_MAX: Final = 1024 * 1024
"""So much is kept in memory before it is written: entries for a day to come lie in many files."""
PIECE_ENTRIES: Final = 250_000
"""So many entries of a file are read at once."""
RECENT_MAX: Final = 262_144
"""Ids in a file of recent ones. Two files are kept."""

_CHECKPOINT: Final = "checkpoint"
_DONE: Final = ".done"
_OFFSET: Final = struct.Struct(">q")
_CANCELLED: Final = struct.Struct(">Qq")


class IndexDamaged(MillraceError):
    """The index does not hold what its checkpoint says: it is to be built again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the index of delayed messages at {path} is built again: {reason}")


class Place(NamedTuple):
    """The last batch that the index knows of: it must still be there, with the same checksum."""

    base_offset: int
    crc: int


class _File:
    """A file of the index with what is to be appended to it."""

    __slots__ = ("buffer", "crc", "name", "size_bytes")

    def __init__(self, name: str, size_bytes: int = 0, crc: int = 0) -> None:
        self.name = name
        self.size_bytes = size_bytes
        """What is written, and counts."""
        self.crc = crc
        self.buffer = bytearray()


class Slot:
    """The entries of one minute or hour."""

    __slots__ = ("done", "entries", "loaded_bytes", "start_ms")

    def __init__(self, name: str) -> None:
        self.start_ms = int(name[1:]) * (MINUTE_MS if name[0] == "m" else HOUR_MS)
        self.entries = _File(name)
        self.done = _File(name + _DONE)
        self.loaded_bytes = 0
        """How much of it was handed out by `load`."""

    @property
    def name(self) -> str:
        return self.entries.name

    @property
    def is_hour(self) -> bool:
        return self.name[0] == "h"

    @property
    def end_ms(self) -> int:
        return self.start_ms + (HOUR_MS if self.is_hour else MINUTE_MS)

    @property
    def pending_count(self) -> int:
        entries, done = self.entries, self.done
        return (entries.size_bytes + len(entries.buffer)) // 16 - (done.size_bytes + len(done.buffer)) // 8

    @property
    def unloaded_bytes(self) -> int:
        return self.entries.size_bytes + len(self.entries.buffer) - self.loaded_bytes


class DelayIndex:
    """Entries in files by due time, and the state that they belong to."""

    def __init__(self, volume: Volume, log_directory: str) -> None:
        self._volume = volume
        self.path = f"{log_directory}/{DIRECTORY}"
        self.state = StoreState()
        self.slots: dict[str, Slot] = {}
        self.horizon_ms = 0
        """What is due before this is in files of a minute; a whole number of hours."""
        self.last_batch = Place(-1, 0)
        self._recent = [_File("r0")]
        self._recent_ids = [array("Q")]
        self._cancelled: dict[int, _File] = {}
        """Files of cancellations, by the store offset of the last one in each."""
        self._buffered_bytes = 0
        self._removed: list[str] = []
        """Files that no checkpoint will name again."""
        self.checkpoint_offset = 0

    # Opening.

    def open(self) -> None:
        """Take over what lies there; raises IndexDamaged if that cannot be believed."""
        self._volume.make_directory(self.path)
        try:
            data = self._volume.read_bytes(f"{self.path}/{_CHECKPOINT}")
        except FileMissing:
            raise IndexDamaged(self.path, "it has no checkpoint") from None
        found = decode_checkpoint(data)
        if found is None:
            raise IndexDamaged(self.path, "its checkpoint is damaged")
        sizes = {entry.name: entry.size_bytes for entry in self._volume.list_directory(self.path)}
        for each in found.files:
            if sizes.get(each.name, 0) < each.size_bytes:
                raise IndexDamaged(self.path, f"{each.name} is shorter than it was")
        self._take_over(found)
        known = {each.name: each.size_bytes for each in found.files}
        for name in sizes:
            if name != _CHECKPOINT and name not in known:
                self._volume.remove(f"{self.path}/{name}")

    def _take_over(self, found: Checkpoint) -> None:
        self.state = found.state
        self.horizon_ms = found.horizon_ms
        self.last_batch = Place(found.last_batch_offset, found.last_batch_crc)
        self.checkpoint_offset = found.state.next_offset
        recent: list[_File] = []
        for name, size_bytes, crc in found.files:
            file = _File(name, size_bytes, crc)
            if name[0] == "r":
                recent.append(file)
            elif name[0] == "c":
                self._take_over_cancelled(file)
            else:
                slot = self._slot(name.removesuffix(_DONE))
                if name.endswith(_DONE):
                    slot.done = file
                else:
                    slot.entries = file
        if recent:
            self._recent = recent
            # In this machine's order of bytes: an index is never carried to another one.
            self._recent_ids = [array("Q", self._read_from(file, 0, file.size_bytes)) for file in recent]

    def _take_over_cancelled(self, file: _File) -> None:
        self._check(file)
        last_offset = 0
        for key, offset in _CANCELLED.iter_unpack(self._read_from(file, 0, file.size_bytes)):
            self.state.cancelled.restore(key, offset)
            last_offset = offset
        self._cancelled[last_offset] = file

    def begin_again(self, log_start_offset: int) -> None:
        """Throw away what is there: all that the log holds will be added from its start on."""
        self._volume.remove_tree(self.path)
        self._volume.make_directory(self.path)
        self.state = StoreState(log_start_offset)
        self.slots = {}
        self.horizon_ms = 0
        self.last_batch = Place(-1, 0)
        self._recent = [_File("r0")]
        self._recent_ids = [array("Q")]
        self._cancelled = {}
        self._buffered_bytes = 0
        self._removed = []
        self.checkpoint_offset = log_start_offset

    # Taking in.

    def is_recent(self, key: int) -> bool:
        """Whether an id of this hash came lately."""
        return key in self.state.remembered or any(key in ids for ids in self._recent_ids)

    def take_in(self, now_ms: int, last_batch: Place) -> list[Entry]:
        """Enter what the state has gathered; returns what was added, for those who hold entries in memory.

        Entries of slots that were handed out are to go there directly."""
        state = self.state
        self.last_batch = last_batch
        self._move_horizon(now_ms)
        added, state.added = state.added, []
        for entry in added:
            file = self._slot(self._name_of(entry[0])).entries
            file.buffer += ENTRY.pack(*entry)
        settled, state.settled = state.settled, []
        for due_ms, offset in settled:
            self._slot_of(due_ms).done.buffer += _OFFSET.pack(offset)
        remembered, state.remembered = state.remembered, []
        if remembered:
            self._remember(remembered)
        cancelled, state.cancelled.added = state.cancelled.added, []
        for row in cancelled:
            self._cancel(*row)
        self._buffered_bytes += 16 * (len(added) + len(cancelled)) + 8 * (len(settled) + len(remembered))
        return added

    @property
    def is_full(self) -> bool:
        """Whether so much is buffered that a checkpoint is worthwhile."""
        return self._buffered_bytes >= BUFFER_BYTES_MAX

    @property
    def is_dirty(self) -> bool:
        return self._buffered_bytes > 0 or self.checkpoint_offset != self.state.next_offset

    def save(self) -> None:
        """Write what is buffered and the checkpoint; then remove the files that nobody needs any more."""
        assert not self.state.added, "what the state gathered is not taken in"
        self.state.forget_old_cancellations()
        for name in [name for name, slot in self.slots.items() if slot.pending_count <= 0]:
            self._forget(self.slots[name])
        kept = [file for slot in self.slots.values() for file in (slot.entries, slot.done)]
        if len(self._recent) > 2:
            self._removed += [file.name for file in self._recent[:-2]]
            del self._recent[:-2], self._recent_ids[:-2]
        kept += self._recent
        needed = self.state.needed_offset
        for last_offset in [each for each in self._cancelled if each < needed]:
            file = self._cancelled.pop(last_offset)
            self._removed += [file.name] if file.size_bytes else []
        kept += self._cancelled.values()
        for file in kept:
            self._write(file)
        self._buffered_bytes = 0
        checkpoint = Checkpoint(
            self.state,
            self.horizon_ms,
            self.last_batch.base_offset,
            self.last_batch.crc,
            [FileSum(file.name, file.size_bytes, file.crc) for file in kept if file.size_bytes],
        )
        self._volume.write_bytes(f"{self.path}/{_CHECKPOINT}", encode_checkpoint(checkpoint), durable=False)
        self.checkpoint_offset = self.state.next_offset
        removed, self._removed = self._removed, []
        for name in removed:
            self._volume.remove(f"{self.path}/{name}")

    # Handing out.

    def hand_out_again(self) -> None:
        """Somebody new holds entries in memory: begin with the first."""
        for slot in self.slots.values():
            slot.loaded_bytes = 0

    def next_slot(self) -> Slot | None:
        """The earliest one of which something was not handed out."""
        waiting = [slot for slot in self.slots.values() if slot.unloaded_bytes > 0]
        return min(waiting, key=_start_ms, default=None)

    def next_due_ms(self) -> int | None:
        """The begin of the first slot in which something is pending. May be called on the loop."""
        waiting = [slot.start_ms for slot in list(self.slots.values()) if slot.pending_count > 0]
        return min(waiting, default=None)

    def load(self, name: str) -> list[Entry]:
        """Hand out the next entries of a slot that are pending."""
        slot = self.slots[name]
        if slot.is_hour:
            self._split(slot)
            return []
        self._write(slot.entries)
        if slot.loaded_bytes == 0:
            self._check(slot.entries)
        done = self._done_offsets(slot)
        data = self._read_from(slot.entries, slot.loaded_bytes, 16 * PIECE_ENTRIES)
        slot.loaded_bytes += len(data)
        return [entry for entry in ENTRY.iter_unpack(data) if entry[1] not in done]

    def note_handed_out(self, entries: Iterable[Entry]) -> list[Entry]:
        """Of entries that were just taken in: those of slots that were handed out whole. The rest will be
        loaded with its slot."""
        by_slot: dict[str, list[Entry]] = {}
        for entry in entries:
            by_slot.setdefault(self._name_of(entry[0]), []).append(entry)
        direct: list[Entry] = []
        for name, its_entries in by_slot.items():
            slot = self.slots[name]
            size_bytes = 16 * len(its_entries)
            if slot.loaded_bytes and slot.unloaded_bytes == size_bytes:
                slot.loaded_bytes += size_bytes
                direct += its_entries
        return direct

    # Files.

    def _name_of(self, due_ms: int) -> str:
        if due_ms < self.horizon_ms:
            return f"m{due_ms // MINUTE_MS}"
        return f"h{due_ms // HOUR_MS}"

    def _slot(self, name: str) -> Slot:
        slot = self.slots.get(name)
        if slot is None:
            slot = self.slots[name] = Slot(name)
        return slot

    def _slot_of(self, due_ms: int) -> Slot:
        """The slot in which an entry lies that was added before."""
        return self._slot(self._name_of(due_ms))

    def _move_horizon(self, now_ms: int) -> None:
        """Keep what is due within a day in files of a minute. It never moves back with the clock."""
        wanted = (now_ms + DAY_MS) // HOUR_MS * HOUR_MS + HOUR_MS
        while self.horizon_ms < wanted:
            if self.horizon_ms == 0:
                self.horizon_ms = wanted
                return
            name = f"h{self.horizon_ms // HOUR_MS}"
            self.horizon_ms += HOUR_MS
            slot = self.slots.get(name)
            if slot is not None:
                self._split(slot)

    def _split(self, slot: Slot) -> None:
        """Spread an hour over its minutes. The hour's file is removed once a checkpoint names the others."""
        self.horizon_ms = max(self.horizon_ms, slot.end_ms)
        self._write(slot.entries)
        self._check(slot.entries)
        done = self._done_offsets(slot)
        position = 0
        while data := self._read_from(slot.entries, position, 16 * PIECE_ENTRIES):
            position += len(data)
            for due_ms, offset in ENTRY.iter_unpack(data):
                if offset not in done:
                    self._slot(f"m{due_ms // MINUTE_MS}").entries.buffer += ENTRY.pack(due_ms, offset)
            for each in self.slots.values():
                self._write(each.entries)
        self._forget(slot)
        self._buffered_bytes += 1

    def _forget(self, slot: Slot) -> None:
        """The next checkpoint names this slot no more."""
        del self.slots[slot.name]
        self._removed += [file.name for file in (slot.entries, slot.done) if file.size_bytes]

    def _done_offsets(self, slot: Slot) -> frozenset[int]:
        self._write(slot.done)
        self._check(slot.done)
        data = self._read_from(slot.done, 0, slot.done.size_bytes)
        return frozenset(offset for (offset,) in _OFFSET.iter_unpack(data))

    def _remember(self, keys: Sequence[int]) -> None:
        file, ids = self._recent[-1], self._recent_ids[-1]
        if len(ids) + len(keys) > RECENT_MAX and ids:
            file, ids = _File(f"r{int(file.name[1:]) + 1}"), array("Q")
            self._recent.append(file)
            self._recent_ids.append(ids)
        ids.extend(keys)
        file.buffer += array("Q", keys).tobytes()

    def _cancel(self, key: int, offset: int) -> None:
        """Enter a cancellation into the last file, which from now on ends with it."""
        last_offset = max(self._cancelled, default=-1)
        file = self._cancelled.pop(last_offset, None) or _File("c0")
        if file.size_bytes + len(file.buffer) >= _CANCELLED.size * GENERATION_MAX:
            self._cancelled[last_offset] = file
            file = _File(f"c{int(file.name[1:]) + 1}")
        file.buffer += _CANCELLED.pack(key, offset)
        self._cancelled[offset] = file

    def _write(self, file: _File) -> None:
        """Append what is buffered."""
        if not file.buffer:
            return
        data = bytes(file.buffer)
        self._volume.file(f"{self.path}/{file.name}", create=True).write_at(file.size_bytes, data)
        file.crc = crc32c(data, file.crc)
        file.size_bytes += len(data)
        file.buffer.clear()

    def _check(self, file: _File) -> None:
        crc = position = 0
        while data := self._read_from(file, position, 16 * PIECE_ENTRIES):
            crc = crc32c(data, crc)
            position += len(data)
        if crc != file.crc:
            raise IndexDamaged(self.path, f"{file.name} has a wrong checksum")

    def _read_from(self, file: _File, position: int, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, file.size_bytes - position)
        if size_bytes <= 0:
            return b""
        data = self._volume.file(f"{self.path}/{file.name}").read_at(position, size_bytes)
        if len(data) < size_bytes:
            raise IndexDamaged(self.path, f"{file.name} is shorter than it was")
        return data


def _start_ms(slot: Slot) -> int:
    return slot.start_ms
