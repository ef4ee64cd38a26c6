"""What a dead letter looks like: Kafka's headers say where its record is and why it was given up, and the
record itself comes with it, if the group wants that. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from millrace.queues.share_partition.changes import DeadLetter, DeadLetterCause
from millrace.wire.batch_header import CONTROL_BIT, read_header
from millrace.wire.records import Header, Record, build_batch, read_records, split_batches

HEADER_PREFIX: Final = "__dlq.errors."
TOPIC: Final = HEADER_PREFIX + "topic"
PARTITION: Final = HEADER_PREFIX + "partition"
OFFSET: Final = HEADER_PREFIX + "offset"
GROUP: Final = HEADER_PREFIX + "group"
DELIVERY_COUNT: Final = HEADER_PREFIX + "delivery.count"
MESSAGE: Final = HEADER_PREFIX + "message"

MESSAGES: Final = {
    DeadLetterCause.REJECTED: "Offset rejected by client.",
    DeadLetterCause.DELIVERY_LIMIT: "Offset delivery count exceeded the threshold.",
    DeadLetterCause.EXPIRED: "Offset expired before its delivery.",
}
"""What header `message` says; the first two are Kafka's."""
_CAUSES: Final = {message: cause for cause, message in MESSAGES.items()}


class Source(NamedTuple):
    """Whose records are given up."""

    group_id: str
    topic: str
    partition: int


class Origin(NamedTuple):
    """Where a dead letter comes from, as its headers say."""

    source: Source
    offset: int
    delivery_count: int
    cause: DeadLetterCause | None
    """None if the message is none of ours or Kafka's."""


def letter_headers(source: Source, offset: int, letter: DeadLetter) -> tuple[Header, ...]:
    return (
        (TOPIC, source.topic.encode()),
        (PARTITION, str(source.partition).encode()),
        (OFFSET, str(offset).encode()),
        (GROUP, source.group_id.encode()),
        (DELIVERY_COUNT, str(letter.delivery_count).encode()),
        (MESSAGE, MESSAGES[letter.cause].encode()),
    )


def origin_of(record: Record) -> Origin | None:
    """Where a dead letter comes from; None for a record that is none. The last header of a name counts: a
    dead letter that was delivered and given up again has the headers of its first death, too."""
    headers = dict(record.headers)
    try:
        texts = [(headers[name] or b"").decode() for name in (TOPIC, PARTITION, OFFSET, GROUP)]
        count = (headers[DELIVERY_COUNT] or b"0").decode()
        message = (headers[MESSAGE] or b"").decode(errors="replace")
        source = Source(texts[3], texts[0], int(texts[1]))
        return Origin(source, int(texts[2]), int(count), _CAUSES.get(message))
    except (KeyError, ValueError):
        return None


class Stamp(NamedTuple):
    """Who produces a batch of dead letters, and which one it is: tried again, it is stored once."""

    producer_id: int
    sequence: int


class Letters(NamedTuple):
    """Dead letters of some records, as a batch."""

    batch: bytes
    """Empty if there is nothing to write: none of the offsets has a record."""
    last_offset: int
    """Up to this offset, of those that were asked for, all is in it."""


def build_letters(
    data: bytes,
    source: Source,
    letter: DeadLetter,
    *,
    now_ms: int,
    records_max: int,
    copies: bool,
    stamp: Stamp,
    written: frozenset[int] = frozenset(),
) -> Letters:
    """The dead letters of the records that `data`, whole batches, has of those that are given up; without
    those that are written already. Offsets without a record, such as markers, have no dead letter."""
    letters: list[Record] = []
    last_offset = letter.first_offset - 1
    for batch in split_batches(memoryview(data)):
        header = read_header(batch)
        if header.base_offset > letter.last_offset:
            break
        batch_last = header.base_offset + header.last_offset_delta
        if batch_last < letter.first_offset:
            continue
        records: Sequence[Record] = () if header.attributes & CONTROL_BIT else read_records(batch)
        for record in records:
            if not letter.first_offset <= record.offset <= letter.last_offset or record.offset in written:
                continue
            if len(letters) == records_max:
                return Letters(_batch(letters, stamp), record.offset - 1)
            letters.append(_letter(record, source, letter, len(letters), now_ms, copies=copies))
        last_offset = min(batch_last, letter.last_offset)
    return Letters(_batch(letters, stamp), last_offset)


def build_bare_letters(
    source: Source, letter: DeadLetter, last_offset: int, *, now_ms: int, stamp: Stamp
) -> Letters:
    """Dead letters up to an offset of records that are not there any more: all that is known of them."""
    records = [
        Record(offset - letter.first_offset, now_ms, None, None, letter_headers(source, offset, letter))
        for offset in range(letter.first_offset, last_offset + 1)
    ]
    return Letters(_batch(records, stamp), last_offset)


def offsets_in(data: bytes, source: Source) -> frozenset[int]:
    """Which offsets of a source have dead letters in `data`, whole batches of a dead-letter topic."""
    offsets: list[int] = []
    for batch in split_batches(memoryview(data)):
        if read_header(batch).attributes & CONTROL_BIT:
            continue
        origins: Iterable[Origin | None] = map(origin_of, read_records(batch))
        offsets.extend(origin.offset for origin in origins if origin is not None and origin.source == source)
    return frozenset(offsets)


def _letter(
    record: Record, source: Source, letter: DeadLetter, number: int, now_ms: int, *, copies: bool
) -> Record:
    headers = letter_headers(source, record.offset, letter)
    if not copies:
        return Record(number, now_ms, None, None, headers)
    return Record(number, now_ms, record.key, record.value, (*record.headers, *headers))


def _batch(records: Sequence[Record], stamp: Stamp) -> bytes:
    if not records:
        return b""
    return build_batch(records, producer_id=stamp.producer_id, producer_epoch=0, base_sequence=stamp.sequence)
