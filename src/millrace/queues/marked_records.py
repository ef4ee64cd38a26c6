"""Finds the records of a producer's batch whose headers ask the broker for something: a later delivery, the
end of one that is planned, or to be stored once only.

Pure functions, run off the event loop. Most batches have no such header, which one search for the names'
common beginning shows. No record becomes an object unless that beginning is in it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from millrace.log.batches.validation import RECORD_ERRORS_MAX, InvalidRecords, RecordError
from millrace.queues.delayed.model import CANCEL, DELAY_MS, DELIVER_AT, REPLACE
from millrace.wire.batch_header import HEADER_SIZE, BatchHeader, read_header
from millrace.wire.record_spans import MalformedBatch, scan_records
from millrace.wire.records import Header, Record, inflate_records, read_record

DEDUP_ID: Final = "millrace-dedup-id"
"""Records of a partition that have the same bytes in this header are the same record, sent again."""

_BEGINNING: Final = b"millrace-"
_NUMBER: Final = re.compile(rb"-?[0-9]{1,18}")
_SCHEDULING: Final = (DELIVER_AT, DELAY_MS, CANCEL, REPLACE)


class MarkRules(Protocol):
    """The topic settings that give the headers a meaning; `LogConfig` has them all."""

    @property
    def delayed_delivery_enable(self) -> bool: ...
    @property
    def delayed_delivery_max_ms(self) -> int: ...
    @property
    def dedup_window_ms(self) -> int: ...
    @property
    def max_decompressed_message_bytes(self) -> int: ...
    @property
    def timestamp_log_append(self) -> bool: ...


class Scheduled(NamedTuple):
    """A record that is to be delivered at its time, or that ends another's wait; `delta` is its place in the
    batch. The other fields are those of `DelayedRecord`."""

    delta: int
    due_ms: int
    produced_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
    replaces: int = -1
    is_cancellation: bool = False


class Marks(NamedTuple):
    """What the headers of a batch ask for."""

    scheduled: tuple[Scheduled, ...] = ()
    """Records that do not belong into the log now."""
    due: tuple[Scheduled, ...] = ()
    """Records whose time has passed already: they stay in the batch."""
    ids: tuple[tuple[int, int], ...] = ()
    """Place in the batch and hash of the id, for each record that is to be stored once."""


NO_MARKS: Final = Marks()


def find_marks(batch: memoryview, rules: MarkRules, *, now_ms: int) -> Marks:
    """What a batch with a right checksum asks for, by the topic's settings.

    Raises InvalidRecords for headers that nobody can follow, MalformedBatch or DecompressedTooLarge. What is
    no single batch of a producer's data has no marks: appending it will be refused.
    """
    if len(batch) < HEADER_SIZE:
        return NO_MARKS
    header = read_header(batch)
    if header.size_bytes != len(batch) or header.is_control or header.records_count <= 0:
        return NO_MARKS
    data = bytes(inflate_records(batch, header, rules.max_decompressed_message_bytes))
    if _BEGINNING not in data:
        return NO_MARKS
    search = _Search(header, rules, now_ms)
    for index, span in enumerate(scan_records(data, header)):
        delta, _, _, _, _, start, end = span
        if delta != index:
            raise MalformedBatch("offset deltas are not consecutive", record_index=index)
        if data.find(_BEGINNING, start, end) >= 0:
            search.look_at(delta, read_record(data, span, header))
    return search.finish()


def stored_ids(batch: memoryview, limit_bytes: int) -> list[int]:
    """The hashes of the ids in a batch of the log, for whom nothing else of it matters."""
    header = read_header(batch)
    if header.is_control or header.is_transactional or header.records_count <= 0:
        return []
    data = bytes(inflate_records(batch, header, limit_bytes))
    if DEDUP_ID.encode() not in data:
        return []
    found = (_id_of(read_record(data, span, header).headers) for span in scan_records(data, header))
    return [each for each in found if each is not None]


class _Search:
    """The walk through one batch."""

    def __init__(self, header: BatchHeader, rules: MarkRules, now_ms: int) -> None:
        self._header = header
        self._rules = rules
        self._now_ms = now_ms
        self._scheduled: list[Scheduled] = []
        self._due: list[Scheduled] = []
        self._ids: list[tuple[int, int]] = []
        self._errors: list[RecordError] = []

    def look_at(self, delta: int, record: Record) -> None:
        # Transactions may be aborted, and what they wrote with them: their ids say nothing yet.
        if self._rules.dedup_window_ms > 0 and not self._header.is_transactional:
            hashed = _id_of(record.headers)
            if hashed is not None:
                self._ids.append((delta, hashed))
        if self._rules.delayed_delivery_enable:
            marks = {name: value for name, value in record.headers if name in _SCHEDULING}
            if marks:
                self._schedule(delta, record, marks)

    def finish(self) -> Marks:
        if self._errors:
            raise InvalidRecords(tuple(self._errors[:RECORD_ERRORS_MAX]))
        return Marks(tuple(self._scheduled), tuple(self._due), tuple(self._ids))

    def _schedule(self, delta: int, record: Record, marks: dict[str, bytes | None]) -> None:
        try:
            scheduled = self._scheduled_by(delta, record, marks)
        except ValueError as error:
            if len(self._errors) < RECORD_ERRORS_MAX:
                self._errors.append(RecordError(delta, str(error)))
            return
        if scheduled.due_ms > self._now_ms or scheduled.replaces >= 0:
            self._scheduled.append(scheduled)
        else:
            self._due.append(scheduled)

    def _scheduled_by(self, delta: int, record: Record, marks: dict[str, bytes | None]) -> Scheduled:
        """What the headers ask for; ValueError says why that cannot be."""
        if self._header.is_transactional:
            raise ValueError(
                f"a record with {next(iter(marks))} cannot be part of a transaction: send it without one"
            )
        numbers = {name: _number(name, value) for name, value in marks.items()}
        now_ms = self._now_ms
        has_no_time = self._rules.timestamp_log_append or record.timestamp < 0
        produced_ms = now_ms if has_no_time else record.timestamp
        earlier = numbers.get(CANCEL, numbers.get(REPLACE, 0))
        if earlier < 0:
            raise ValueError(f"{earlier} is no offset: {CANCEL} and {REPLACE} take the offset of a record")
        if CANCEL in numbers:
            if len(numbers) > 1:
                raise ValueError(f"a record with {CANCEL} has none of the other headers of delayed records")
            return Scheduled(delta, now_ms, produced_ms, replaces=earlier, is_cancellation=True)
        if (DELIVER_AT in numbers) == (DELAY_MS in numbers):
            raise ValueError(f"a delayed record has one of {DELIVER_AT} and {DELAY_MS}, not both or none")
        if DELAY_MS in numbers:
            delay_ms = numbers[DELAY_MS]
            due_ms = produced_ms + delay_ms
        else:
            due_ms = numbers[DELIVER_AT]
            delay_ms = due_ms - now_ms
        if delay_ms > self._rules.delayed_delivery_max_ms:
            raise ValueError(
                f"a delay of {delay_ms} ms is too long: delayed.delivery.max.ms allows"
                f" {self._rules.delayed_delivery_max_ms}"
            )
        headers = tuple(header for header in record.headers if header[0] not in _SCHEDULING)
        replaces = numbers.get(REPLACE, -1)
        return Scheduled(delta, due_ms, produced_ms, record.key, record.value, headers, replaces)


def _number(name: str, value: bytes | None) -> int:
    if value is None or _NUMBER.fullmatch(value) is None:
        shown = "null" if value is None else repr(value[:40])[1:]
        raise ValueError(f"{name} is {shown}; allowed is a whole number as text, such as 1700000000000")
    return int(value)


def _id_of(headers: tuple[Header, ...]) -> int | None:
    """The hash of a record's id; a record without an id, or with an empty one, has none."""
    for name, value in headers:
        if name == DEDUP_ID and value:
            return int.from_bytes(blake2b(value, digest_size=8).digest(), "big")
    return None
