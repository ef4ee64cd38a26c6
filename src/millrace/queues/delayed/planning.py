"""Which messages go to which target in which batch. No I/O: stored messages go in, batches come out.

Each target gets its messages in the order in which they are due. A round uses an epoch of the internal
producer of its own, so that its sequences begin at 0 everywhere and no target's last sequence has to be kept:
a batch that was there already is known by producer, epoch and sequence, and an old leader's is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from millrace.queues.delayed.codec import Entry, Intent, StoredMessage, Target
from millrace.wire.batch_header import MAGIC, BatchHeader
from millrace.wire.record_spans import append_varint
from millrace.wire.records import assemble_batch

BATCHES_MAX: Final = 4
"""Batches for a target in a round: a partition remembers the last five of a producer, by which it knows one
that comes again."""
BATCH_RECORDS_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 256 * 1024
EPOCH_MAX: Final = 32_000
"""After so many rounds the internal producer takes a new id."""
RECORD_OVERHEAD: Final = 24
"""What a record takes in a batch beside its message, at most."""


class Found(NamedTuple):
    """A message that is due, as it was read from the store."""

    entry: Entry
    stored: StoredMessage


class Planned(NamedTuple):
    """A batch for a target: what is stored of it before, and what is appended."""

    intent: Intent
    batch: bytes


class Round(NamedTuple):
    """What one look at what is due comes to."""

    planned: list[Planned]
    left: list[Entry]
    """For the next round: their target has enough in this one."""


def plan(
    found: Iterable[Found], *, producer_id: int, producer_epoch: int, records_max: int = BATCH_RECORDS_MAX
) -> Round:
    """Batches for all targets. What a target gets in this round gets the sequences from 0 on."""
    by_target: dict[Target, list[Found]] = {}
    for each in found:
        topic_id, partition, _ = each.stored.id
        by_target.setdefault(Target(topic_id, partition), []).append(each)
    planned: list[Planned] = []
    left: list[Entry] = []
    for target, messages in by_target.items():
        messages.sort(key=_entry)
        sequence = 0
        batches = _in_batches(messages, records_max)
        for batch in batches[:BATCHES_MAX]:
            entries = tuple(each.entry for each in batch)
            intent = Intent(target, producer_id, producer_epoch, sequence, False, entries)
            planned.append(Planned(intent, delivery_batch(intent, [each.stored for each in batch])))
            sequence += len(batch)
        left += [each.entry for batch in batches[BATCHES_MAX:] for each in batch]
    return Round(planned, left)


def delivery_batch(intent: Intent, messages: Sequence[StoredMessage]) -> bytes:
    """The batch that carries an intent out, the same whenever it is built."""
    assert len(messages) == len(intent.entries), (len(messages), intent)
    base_timestamp = messages[0].due_ms
    records = bytearray()
    for delta, stored in enumerate(messages):
        body = bytearray(1)
        append_varint(body, stored.due_ms - base_timestamp)
        append_varint(body, delta)
        body += stored.message
        append_varint(records, len(body))
        records += body
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=len(messages) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(stored.due_ms for stored in messages),
        producer_id=intent.producer_id,
        producer_epoch=intent.producer_epoch,
        base_sequence=intent.base_sequence,
        records_count=len(messages),
    )
    return assemble_batch(header, records)


def _entry(found: Found) -> Entry:
    return found.entry


def _in_batches(messages: Sequence[Found], records_max: int) -> list[list[Found]]:
    batches: list[list[Found]] = []
    left = 0
    for each in messages:
        size = len(each.stored.message) + RECORD_OVERHEAD
        if not batches or size > left or len(batches[-1]) >= records_max:
            batches.append([])
            left = BATCH_BYTES_MAX
        batches[-1].append(each)
        left -= size
    return batches
