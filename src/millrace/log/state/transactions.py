"""What a log must know of transactions: who has one open, and which ended aborted.

Markers come from a coordinator, which alone knows how a transaction ended.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millrace.log.errors import CoordinatorFenced, ProducerFenced
from millrace.log.segments.txn_index import AbortedTransaction
from millrace.log.state.producer_state import ProducerStates
from millrace.wire.batch_header import CONTROL_BIT, HEADER_SIZE

_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


NO_TRANSACTION_VERSION: Final = 0
EPOCH_PER_TRANSACTION: Final = 2
"""The version of the transaction protocol from which every transaction has an epoch of its own."""


class EndMarker(NamedTuple):
    """What a coordinator says to a partition: this producer's transaction is over."""

    producer_id: int
    epoch: int
    """From transaction version 2 on, one more than the epoch of the transaction's records."""
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = NO_TRANSACTION_VERSION


class Marker(NamedTuple):
    """How a transaction ended, as its marker in the log says."""

    is_commit: bool
    coordinator_epoch: int


def apply_batch(
    states: ProducerStates, header: tuple[int, ...], batch: bytes | memoryview, now_ms: int
) -> AbortedTransaction | None:
    """Apply a batch of the log to the producers' state; returns the transaction that it aborted, if it did.

    `batch` is only looked at if the header says that it is a control batch.
    """
    base_offset, _, _, _, _, attributes, delta, _, timestamp, producer_id, epoch, _, _ = header
    last_offset = base_offset + delta
    if not attributes & CONTROL_BIT:
        if producer_id >= 0:
            states.record(header, last_offset, timestamp, now_ms)
        return None
    marker = read_marker(batch)
    if marker is None:
        return None
    first_offset = states.record_marker(
        producer_id,
        epoch=epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=timestamp,
        now_ms=now_ms,
    )
    if marker.is_commit or first_offset < 0:
        return None
    unstable = states.first_unstable_offset
    return AbortedTransaction(
        producer_id, first_offset, last_offset, unstable if unstable >= 0 else last_offset + 1
    )


def check_marker(states: ProducerStates, marker: EndMarker) -> bool:
    """Whether the marker has still to be written; raises if a newer coordinator or producer forbids it.

    A coordinator that was restarted sends its markers again. With an epoch per transaction, the epoch shows
    whether a marker has arrived before, or is late and would end a later transaction."""
    entry = states.entries.get(marker.producer_id)
    if entry is None:
        return True
    if marker.coordinator_epoch < entry.coordinator_epoch:
        raise CoordinatorFenced(
            marker.producer_id, epoch=marker.coordinator_epoch, current_epoch=entry.coordinator_epoch
        )
    if marker.epoch < entry.epoch:
        raise ProducerFenced(marker.producer_id, epoch=marker.epoch, current_epoch=entry.epoch)
    if marker.epoch == entry.epoch and marker.transaction_version >= EPOCH_PER_TRANSACTION:
        if entry.current_txn_first_offset >= 0:
            raise ProducerFenced(marker.producer_id, epoch=marker.epoch - 1, current_epoch=entry.epoch)
        return False
    return True


def read_marker(batch: bytes | memoryview) -> Marker | None:
    """The end marker in a control batch, or None if it is control data of another kind."""
    try:
        # length, attributes, timestamp delta, offset delta, then key and value with their lengths
        _, at = _varint(batch, HEADER_SIZE)
        _, at = _varint(batch, at + 1)
        _, at = _varint(batch, at)
        key_size, at = _varint(batch, at)
        if key_size < _MARKER_KEY.size:
            return None
        _, kind = _MARKER_KEY.unpack_from(batch, at)
        value_size, at = _varint(batch, at + key_size)
        if kind not in (_ABORT, _COMMIT) or value_size < _MARKER_VALUE.size:
            return None
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(batch, at)
    except (IndexError, struct.error):
        return None
    return Marker(kind == _COMMIT, coordinator_epoch)


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise IndexError(at)
