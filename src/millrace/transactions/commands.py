"""What can be asked of a transaction coordinator, what it answers, and what it wants done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.core.ids import TopicPartition

DONE: object = object()
"""The response of commands that have nothing to tell."""


class Identity(NamedTuple):
    """The producer id and epoch that a producer writes under. From transaction version 2 on, every
    transaction has its own epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """A producer takes up a transactional id; this fences the producer that had it before."""

    transactional_id: str
    timeout_ms: int
    expected: Identity | None = None
    """The identity that the producer knows, if it goes on after an error; None for one that starts."""
    fresh_producer_id: int | None = None
    """For a transactional id that is new, or whose epochs are used up; the caller draws it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Take partitions into the producer's transaction, before it writes to them."""

    transactional_id: str
    producer: Identity
    partitions: Sequence[TopicPartition]
    transaction_version: int


class VerifyPartitions(NamedTuple):
    """Asks whether all of these are in the producer's open transaction."""

    transactional_id: str
    producer: Identity
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """The producer commits or aborts."""

    transactional_id: str
    producer: Identity
    is_commit: bool
    transaction_version: int
    fresh_producer_id: int | None = None


class TransactionTimedOut(NamedTuple):
    """A transaction was open for as long as its producer had allowed."""

    transactional_id: str
    producer: Identity


class MarkersWritten(NamedTuple):
    """All partitions have the marker of the transaction that was being ended."""

    transactional_id: str
    producer: Identity


class ExpireTransactionalIds(NamedTuple):
    """Forget the transactional ids that nobody has used for long."""


class WriteMarkers(NamedTuple):
    """An effect: tell every partition how the transaction ended, then report MarkersWritten."""

    transactional_id: str
    producer: Identity
    is_commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, kw_only=True)
class TransactionSettings:
    """What the broker's settings say about transactions."""

    timeout_ms_max: int = 900_000
    id_expiration_ms: int = 604_800_000
    id_expiration_check_ms: int = 3_600_000
