"""What rules answer to a command: records to store, timers to set, answers to give. No I/O here."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from millrace.core.errors import MillraceError
from millrace.log.state.transactions import EndMarker

R = TypeVar("R")
Token = int
"""Names a request that waits for its answer; the shell gives them out."""


class Record(NamedTuple):
    """One record of the internal topic: key and value as message dataclasses; no value is a tombstone."""

    key: object
    value: object | None


class TransactionalRecord(NamedTuple):
    """A record that a transaction of another topic's producer wrote: it counts if that ends in a commit."""

    producer_id: int
    record: Record


class TransactionEnded(NamedTuple):
    """The marker behind a producer's transactional records, as the machine applies it."""

    producer_id: int
    is_commit: bool


class Unstored(NamedTuple):
    """What a decision adds to its records and no record has room for. The machine applies it with the
    records, so a decision that is not carried out leaves nothing behind; loading does without it."""

    fact: object


Applied = Record | TransactionalRecord | TransactionEnded | Unstored
"""All that changes a machine: what the log holds, in its order, and what decisions add to it."""


class Producer(NamedTuple):
    """The producer in whose transaction records are stored."""

    producer_id: int
    epoch: int


class SetTimer(NamedTuple):
    """Give `command` to `decide` after `delay_ms`. This replaces a timer of the same name, which is cheap."""

    name: Hashable
    delay_ms: int
    command: object


class CancelTimer(NamedTuple):
    """Forget the timer of this name, if there is one."""

    name: Hashable


Timer = SetTimer | CancelTimer


class Reply(NamedTuple):
    """The answer to a request that an earlier decision left waiting."""

    token: Token
    outcome: object | MillraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[R]):
    """A machine's answer to a command. It leaves when its records, and all earlier ones, are committed."""

    records: tuple[Record, ...] = ()
    """Stored in one batch, and applied in order before the next command is looked at."""
    unstored: tuple[Unstored, ...] = ()
    """Applied behind the records."""
    timers: tuple[Timer, ...] = ()
    replies: tuple[Reply, ...] = ()
    response: R | None = None
    """None without an error means that a later decision will reply to the request's token."""
    error: MillraceError | None = None
    producer: Producer | None = None
    """If set, the records belong to a transaction of this producer, and count only from its commit on."""
    marker: EndMarker | None = None
    """Stored behind the records."""
    effects: tuple[object, ...] = ()
    """Given to the owner of the partition when everything up to here is committed; lost with the shard."""
    is_atomic: bool = True
    """Whether a crash must leave all of the records or none; if not, they may fill several batches."""


NOTHING: Decision[object] = Decision()


class Machine(Protocol):
    """The state of one internal partition, and its rules.

    State is of two kinds. What records tell is changed by `apply` alone. Soft state is what nobody stores and
    a restart forgets: who is joining at the moment, when a member was last heard of, answers kept ready. Only
    a machine that says so changes that in `decide`, by named operations of the objects that it holds."""

    @property
    def has_soft_state(self) -> bool:
        """Whether `decide` changes soft state: then a decision that could not be carried out leaves the
        machine wrong, and it must be loaded again."""

    def decide(self, command: object, now_ms: int, token: Token) -> Decision[object]:
        """Answer a command from the present state. Changes nothing but soft state."""

    def apply(self, record: Applied) -> None:
        """The only place where the state changes that records tell of: live commands and loading both end
        here."""

    def resume(self, now_ms: int) -> Decision[object]:
        """Start the timers that the state needs, after everything stored has been applied."""


class RecordCodec(Protocol):
    """Between records and the bytes of the internal topic."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """The record; None if it is of a type that this version does not know, and so leaves alone."""
