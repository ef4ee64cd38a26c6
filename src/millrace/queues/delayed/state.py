"""What a partition of the store adds up to, record by record: what is pending, what is under way, what was
cancelled. No I/O: the index keeps the result on disk, and the log can always tell it again.

A stored message is pending until an intent or a settlement names it. Of the pending ones only counts are kept
here, one for each run of offsets: they say from where on the log is still needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.queues.delayed.cancellations import Cancellations
from millrace.queues.delayed.codec import (
    MOVED,
    NOT_MOVED,
    REPEATED,
    Cancelled,
    Done,
    Entry,
    Intent,
    MessageId,
    Settled,
    StoredMessage,
    StoreRecord,
    id_hash,
)

RUN: Final = 4096
"""How many offsets share a count."""


class StoreState:
    """The records of one partition of the store up to `next_offset`."""

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.first_offset = next_offset
        """Where reading began: what stood before is settled and gone."""
        self.counts: dict[int, int] = {}
        """By run: how many of its messages are pending."""
        self.pending_count = 0
        self.open_intents: dict[int, int] = {}
        """By the store offset of an intent that may not be carried out yet: from where it needs the log."""
        self.cancelled = Cancellations()
        self.added: list[Entry] = []
        """What the index has to take in; whoever does empties the list."""
        self.settled: list[Entry] = []
        """What the index has to take out."""
        self.remembered: list[int] = []
        """The hashes of the ids that came, for the memory of recent ones."""
        self.repeated_count = 0
        self.unknown_count = 0
        """Entries that were settled though nothing was pending in their run: they are left out of account."""

    def apply(self, offset: int, record: StoreRecord, is_recent: Callable[[int], bool]) -> None:
        """Take in the record at this offset. `is_recent` says whether a message with the id of this hash was
        stored a while ago."""
        match record:
            case StoredMessage():
                self._store(offset, record, is_recent)
            case Cancelled(message_id):
                self._cancel(message_id, offset)
            case Intent(entries=entries, is_again=is_again):
                if not is_again:
                    self._settle(entries)
                self.open_intents[offset] = min((each[1] for each in entries), default=offset)
            case Settled(entries):
                self._settle(entries)
            case Done(intents):
                for intent in intents:
                    self.open_intents.pop(intent, None)

    def is_cancelled(self, stored: StoredMessage, offset: int) -> bool:
        """Whether the message at this offset was cancelled or replaced since it was stored first."""
        first_offset = offset if stored.first_offset == NOT_MOVED else stored.first_offset
        return self.cancelled.get(id_hash(stored.id)) > first_offset

    @property
    def needed_offset(self) -> int:
        """From where on the log is needed: by what is pending, and by what is under way."""
        oldest = min((run * RUN for run in self.counts), default=self.next_offset)
        for intent, first_offset in self.open_intents.items():
            oldest = min(oldest, intent, first_offset)
        return max(min(oldest, self.next_offset), self.first_offset)

    def forget_old_cancellations(self) -> None:
        """A cancellation counts for what was stored before it; of that nothing is left."""
        self.cancelled.forget_before(self.needed_offset)

    def _store(self, offset: int, stored: StoredMessage, is_recent: Callable[[int], bool]) -> None:
        if stored.replaces >= 0:
            topic_id, partition, _ = stored.id
            self._cancel(MessageId(topic_id, partition, stored.replaces), offset)
        if not stored.flags & MOVED:
            key = id_hash(stored.id)
            if stored.flags & REPEATED and is_recent(key):
                # It was there already, and may even be delivered by now.
                self.repeated_count += 1
                return
            self.remembered.append(key)
        run = offset // RUN
        self.counts[run] = self.counts.get(run, 0) + 1
        self.pending_count += 1
        self.added.append((stored.due_ms, offset))

    def _cancel(self, message_id: MessageId, offset: int) -> None:
        self.cancelled.add(id_hash(message_id), offset)

    def _settle(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            offset = entry[1]
            if offset < self.first_offset:
                continue
            run = offset // RUN
            left = self.counts.get(run, 0) - 1
            if left < 0:
                # No broker writes that. One record that is wrong must not keep all others from delivery.
                self.unknown_count += 1
                continue
            self.pending_count -= 1
            if left:
                self.counts[run] = left
            else:
                del self.counts[run]
            self.settled.append(entry)
