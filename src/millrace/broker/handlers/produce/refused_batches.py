"""Batches on their way behind one that was refused.

An idempotent producer sends up to five batches before it has an answer. When the first of them is refused for
a passing reason, such as a leadership that this broker has not taken up yet, and the reason is gone a moment
later, those behind it would leave a gap, or be taken for the first of a producer that is not known here. For
the gap Kafka's code is OUT_OF_ORDER_SEQUENCE_NUMBER, and librdkafka's way out of it is a new producer epoch:
it numbers all that is not acknowledged anew, in every partition, also what a former leader has stored. That
is then there twice. So what follows a refused batch is refused as it was until that one comes again, which
is what the producer would have been told if all had been looked at in one moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from millrace.core.ids import TopicId
from millrace.log.errors import StorageError
from millrace.log.state.producer_state import BATCHES_REMEMBERED, SEQUENCE_MAX, next_sequence
from millrace.wire.batch_header import HEADER, HEADER_SIZE
from millrace.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from millrace.broker.network.connection import Connection
    from millrace.replica.partition import Partition

Place: TypeAlias = tuple[str | TopicId, int]
"""A partition as requests name it: by the topic's name or id, and its number."""

PRODUCERS_MAX: Final = 1_000
"""So many producers are remembered for one connection; beyond that the oldest entries go. A producer that
goes on over another connection leaves its entry behind."""
_BEHIND_MAX: Final = BATCHES_REMEMBERED - 1
"""So many batches can be on their way behind a refused one. If there are more, the producer knew of the
refusal when it sent them."""
_HALF: Final = SEQUENCE_MAX // 2


class _Refused:
    __slots__ = ("code", "epoch", "first", "last", "left")

    def __init__(self, epoch: int, sequence: int, code: ErrorCode) -> None:
        self.epoch = epoch
        self.first = sequence
        self.last = sequence
        self.code = code
        self.left = _BEHIND_MAX


class RefusedBatches:
    """Of one connection: what was refused of each producer in each partition, until it is stored."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[Place, int], _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def note(self, place: Place, records: memoryview, code: ErrorCode) -> None:
        producer_id, epoch, sequence = _producer(records)
        if producer_id < 0 or sequence < 0:
            return
        key = place, producer_id
        refused = self._refused.get(key)
        if refused is None or refused.epoch != epoch:
            self._refused[key] = _Refused(epoch, sequence, code)
            if len(self._refused) > PRODUCERS_MAX:
                del self._refused[next(iter(self._refused))]
            return
        refused.code = code
        refused.left = _BEHIND_MAX
        if _is_behind(refused.first, sequence):
            refused.first = sequence
        if _is_behind(sequence, refused.last):
            refused.last = sequence

    def code_behind(self, place: Place, partition: Partition, records: memoryview) -> ErrorCode | None:
        """What to answer to a batch that cannot be stored before an earlier one; None if it may be tried."""
        producer_id, epoch, sequence = _producer(records)
        key = place, producer_id
        refused = self._refused.get(key)
        if refused is None or not partition.is_leader:
            return None
        try:
            entry = partition.log.producers.entries.get(producer_id)
        except StorageError:
            # The append says what is wrong.
            return None
        if entry is None:
            # It may begin anywhere, so it begins with what was refused.
            expected = refused.first
        else:
            # Another leader may have brought what was refused here, or a part of it.
            expected = next_sequence(entry.last_sequence) if entry.epoch == epoch else 0
        is_fenced = entry is not None and entry.epoch > epoch
        if is_fenced or epoch != refused.epoch or _is_behind(expected, refused.last):
            del self._refused[key]
            return None
        if not _is_behind(sequence, expected):
            return None
        refused.left -= 1
        if not refused.left:
            del self._refused[key]
        return refused.code


def note_refused(connection: Connection, place: Place, records: memoryview, code: int) -> None:
    """Remember a batch that was not stored, if its producer is to send it again."""
    if not ErrorCode(code).retriable:
        return
    if connection.refused_batches is None:
        connection.refused_batches = RefusedBatches()
    connection.refused_batches.note(place, records, ErrorCode(code))


def code_behind_refused(
    connection: Connection, place: Place, partition: Partition, records: memoryview
) -> ErrorCode | None:
    """As `RefusedBatches.code_behind`, for a connection on which nothing may have been refused."""
    refused = connection.refused_batches
    if refused is None:
        return None
    code = refused.code_behind(place, partition, records)
    if not refused:
        connection.refused_batches = None
    return code


def _producer(records: memoryview) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence of a batch."""
    if len(records) < HEADER_SIZE:
        return -1, -1, -1
    header = HEADER.unpack_from(records)
    return header[9], header[10], header[11]


def _is_behind(sequence: int, other: int) -> bool:
    """Sequences wrap around, so this asks for the shorter way."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= _HALF
