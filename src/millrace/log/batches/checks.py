"""Why a batch cannot be appended: the slow half of the checks, reached only when the fast half failed."""

from __future__ import annotations

from crc32c import crc32c

from millrace.core.errors import MillraceError
from millrace.log.config import LogConfig
from millrace.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    TransactionOpen,
    UnsupportedBatchFormat,
    UnverifiedTransaction,
)
from millrace.log.state.producer_state import ProducerStates, RememberedBatch, add_to_sequence
from millrace.wire.batch_header import (
    CODEC_MAX,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)


def refusal(batch: memoryview, config: LogConfig) -> MillraceError:
    """The error for a producer's batch whose header the append path did not accept."""
    size = len(batch)
    sent_offset, length, _, magic, _, attributes, delta, _, _, producer_id, _, _, count = HEADER.unpack_from(
        batch
    )
    if not 0 <= magic <= MAGIC:
        return CorruptBatch(f"no batch format has the number {magic}")
    if magic != MAGIC:
        return UnsupportedBatchFormat(magic)
    if length + LENGTH_END < HEADER_SIZE:
        return CorruptBatch(f"the batch says {length + LENGTH_END} bytes, its header alone has {HEADER_SIZE}")
    if length + LENGTH_END > size:
        return InvalidRecord(f"the batch says {length + LENGTH_END} bytes, {size} were sent")
    if length + LENGTH_END < size:
        return InvalidRecord("more than one record batch for one partition in a request")
    if size > config.max_message_bytes:
        return BatchTooLarge(size, size_bytes_max=config.max_message_bytes)
    if attributes & CONTROL_BIT:
        return InvalidRecord("clients may not write control records")
    if attributes & TRANSACTIONAL_BIT and count > 0 and delta == count - 1 and sent_offset == 0:
        return UnverifiedTransaction(producer_id)
    if attributes & COMPRESSION_MASK > CODEC_MAX:
        return InvalidRecord(f"no compression type has the number {attributes & COMPRESSION_MASK}")
    if sent_offset != 0:
        return InvalidRecord(f"the base offset of a producer's batch is 0, not {sent_offset}")
    return InvalidRecord(f"a batch of {count} records has a last offset delta of {delta}")


def check_sent(batch: memoryview, now_ms: int, config: LogConfig) -> None:
    """Refuse a producer's batch as the append path would, for one that comes there with fewer records than
    were sent. Its checksum is right, and it is no transaction's."""
    header = HEADER.unpack_from(batch)
    sent_offset, length, _, magic, _, attributes, delta, base_timestamp, max_timestamp, _, _, _, count = (
        header
    )
    if (
        length + LENGTH_END != len(batch)
        or magic != MAGIC
        or sent_offset
        or count <= 0
        or delta != count - 1
        or attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)
        or attributes & COMPRESSION_MASK > CODEC_MAX
        or len(batch) > config.max_message_bytes
    ):
        raise refusal(batch, config)
    if not config.timestamp_log_append:
        check_timestamps(attributes, base_timestamp, max_timestamp, now_ms, config)


def check_timestamps(
    attributes: int, base_timestamp: int, max_timestamp: int, now_ms: int, config: LogConfig
) -> None:
    if attributes & TIMESTAMP_TYPE_BIT:
        raise InvalidRecord("clients may not send records with the broker's timestamp type")
    for timestamp in (base_timestamp, max_timestamp):
        if timestamp != NO_TIMESTAMP and (
            timestamp - now_ms > config.timestamp_after_max_ms
            or now_ms - timestamp > config.timestamp_before_max_ms
        ):
            raise InvalidTimestamp(
                timestamp,
                now_ms=now_ms,
                before_max_ms=config.timestamp_before_max_ms,
                after_max_ms=config.timestamp_after_max_ms,
            )


def check_sequence(producers: ProducerStates, header: tuple[int, ...]) -> RememberedBatch | None:
    """The original if the batch is a duplicate, None if it may be appended, or raise."""
    _, _, _, _, _, attributes, delta, _, _, producer_id, producer_epoch, sequence, _ = header
    if sequence < 0 or producer_epoch < 0:
        raise InvalidRecord(
            f"producer {producer_id} sent sequence {sequence} and epoch {producer_epoch}; both must be set"
        )
    original = producers.check(
        producer_id,
        epoch=producer_epoch,
        first_sequence=sequence,
        last_sequence=add_to_sequence(sequence, delta),
    )
    if original is None and not attributes & TRANSACTIONAL_BIT:
        entry = producers.entries.get(producer_id)
        if entry is not None and entry.current_txn_first_offset >= 0:
            raise TransactionOpen(producer_id)
    return original


def split_batches(records: memoryview, *, at_least: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Start, end and header of each batch; raises unless all are whole, sound and in order from `at_least`.

    The headers are plain tuples, in the order of BatchHeader's fields: every replicated batch comes here."""
    found = []
    position = 0
    expected = at_least
    while position < len(records):
        if len(records) - position < HEADER_SIZE:
            raise CorruptBatch(f"{len(records) - position} bytes are no record batch")
        header: tuple[int, ...] = HEADER.unpack_from(records, position)
        base_offset, length, _, magic, crc, _, delta, _, _, _, _, _, _ = header
        end = position + LENGTH_END + length
        if magic != MAGIC:
            raise UnsupportedBatchFormat(magic)
        if end > len(records) or end - position < HEADER_SIZE:
            raise CorruptBatch(f"the batch says {end - position} bytes, {len(records) - position} are there")
        if crc32c(records[position + CRC_START : end]) != crc:
            raise CorruptBatch("the checksum of the record batch is wrong")
        if base_offset < expected or delta < 0:
            raise InvalidRecord(f"a batch at offset {base_offset} cannot follow offset {expected - 1}")
        expected = base_offset + delta + 1
        found.append((position, end, header))
        position = end
    return found
