"""What clients did and what they were told, in the order in which it happened. Checkers look at nothing else.

The digest covers every event: two runs with the same digest had the same history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

E = TypeVar("E", bound="Event")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`at` is the loop's time in milliseconds."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(Event):
    """A producer handed over a value for the first time; repetitions are no events."""

    producer: str
    topic: str
    partition: int
    value: str
    transaction: int = 0
    """The producer's own number of the transaction; 0 outside of any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked(Event):
    """The broker acknowledged a value."""

    producer: str
    topic: str
    partition: int
    value: str
    offset: int
    """-1 if the broker knew that the batch is a duplicate, but no longer where it is."""
    transaction: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """The broker said that it stored nothing."""

    producer: str
    topic: str
    partition: int
    value: str
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBroken(Event):
    """A producer that did everything right was told that its numbers leave a gap."""

    producer: str
    topic: str
    partition: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled(Event):
    """Records in the order in which a consumer got them; `session` changes with every seek and assignment."""

    consumer: str
    session: int
    topic: str
    partition: int
    committed_only: bool
    start: int
    """The position asked for."""
    records: tuple[tuple[int, str], ...]
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded(Event):
    """`outcome` is commit, abort, or unknown when the producer was never told."""

    producer: str
    transaction: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRead(Event):
    """A transaction depends on these values: it has read them, and commits that together with its writes."""

    producer: str
    transaction: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned(Event):
    """A member was given these partitions for a generation."""

    group: str
    member: str
    generation: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted(Event):
    """A group's offset was stored; the request left at `asked_at`."""

    group: str
    member: str
    generation: int
    topic: str
    partition: int
    offset: int
    asked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetched(Event):
    """A group was told its offset; the request left at `asked_at`."""

    group: str
    topic: str
    partition: int
    offset: int
    asked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened(Event):
    """What the scenario did to the cluster."""

    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MayBeLost(Event):
    """The scenario destroyed the only copy of these offsets."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsStay(Event):
    """There is no retention: records are gone only where somebody asked for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionAsked(Event):
    """Somebody asked for the deletion of all records before an offset."""

    topic: str
    partition: int
    before_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying(Event):
    """From now on a copier brings each committed record of one topic into another exactly once."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBatchStored(Event):
    """A batch of an aborted transaction came late and was stored, before the partition heard of the end. It
    is aborted with the rest; if it is not, readers of committed records see it."""

    producer: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Event):
    """The scenario deleted a topic."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWithoutLease(Event):
    """A broker did a leader's work for a request that left after the broker's lease had ended, at
    `gone_at`."""

    host: str
    what: str
    asked_at: int
    gone_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedConnections(Event):
    """A broker that ran could not be connected to for a while, and lost so many leases meanwhile."""

    node_id: int
    leases_lost: int
    others: int
    """How many brokers could take it for dead, each of them once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedInVain(Event):
    """In the quiet at the end a follower's fetches were answered so often in a second, and nothing in its
    logs changed."""

    node_id: int
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedItself(Event):
    """A producer without a successor was refused when it aborted a transaction that it had not begun."""

    producer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LateEndAccepted(Event):
    """An EndTxn of a transaction that was over was taken for the end of the next one."""

    producer: str
    transaction: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsExpire(Event):
    """From now on brokers may forget the offsets of a group when nobody has committed any for so long."""

    after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasWanted(Event):
    """Where the copies of a partition have to be in the end."""

    topic: str
    partition: int
    node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionTaken(Event):
    """A broker has acknowledged that a guest may not do this any more."""

    guest: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionGiven(Event):
    """A guest is about to be allowed this again."""

    guest: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestServed(Event):
    """A guest was allowed what it asked for."""

    guest: str
    what: str
    asked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRefused(Event):
    """A guest was told that it may not."""

    guest: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupBegun(Event):
    """A share group that begins with the first record of a topic, and gives a record up after so many
    deliveries."""

    group: str
    topic: str
    deliveries_max: int
    has_dead_letters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcquired(Event):
    """A member of a share group got an answer to its fetch of `asked_at`, perhaps without any records."""

    group: str
    member: str
    session: int
    """The member's own number of the session; it ends with its connection."""
    topic: str
    partition: int
    term: str
    """The leader, its epoch and its process, if they were the same from the request to the answer; else
    empty."""
    asked_at: int
    lock_ms: int
    runs: tuple[tuple[int, int, int], ...]
    """First and last offset of what is the member's now, and the delivery count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAcked(Event):
    """What a member said of records in a request of `asked_at`, and what it was answered."""

    group: str
    member: str
    session: int
    topic: str
    partition: int
    term: str
    asked_at: int
    acks: tuple[tuple[int, int, int], ...]
    """First and last offset, and the type of the acknowledgement."""
    code: int
    """-1 if no answer came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchLost(Event):
    """No answer came to a fetch: the member may have been given anything of these partitions."""

    group: str
    member: str
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDone(Event):
    """What a broker says of a share group when all of its members have come to the end."""

    group: str
    topic: str
    partition: int
    start_offset: int
    lag: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateCompared(Event):
    """What a leader has in memory of a share partition, and what a new leader would read."""

    group: str
    topic: str
    partition: int
    memory: tuple[int, list[tuple[int, int]]]
    """Where the share partition begins, and what behind that is done or waits for its dead letter."""
    stored: tuple[int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersRead(Event):
    """The values of all dead letters of a group in the end."""

    group: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedUntil(Event):
    """A value that nobody may see before a time, in ms since 1970."""

    value: str
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRead(Event):
    """A partition from its first to its last offset, after everything was healed."""

    topic: str
    partition: int
    committed_only: bool
    log_start: int
    high_watermark: int
    last_stable_offset: int
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRead(Event):
    """The batches that one broker has of a partition in the end, up to what it knows to be committed."""

    node_id: int
    topic: str
    partition: int
    log_start: int
    high_watermark: int
    batches: tuple[tuple[int, int], ...]
    """Base offset and checksum of each."""


def _values_of(kind: type[Event]) -> Callable[[Event], tuple[Any, ...]]:
    """Gets all fields at once, which is quicker than the `repr` of a dataclass."""
    return attrgetter(*(field.name for field in fields(kind)))


class History:
    """The events of one run."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._digest = hashlib.sha256()
        self._values_of: dict[type[Event], Callable[[Event], tuple[Any, ...]]] = {}

    def add(self, event: Event) -> None:
        self.events.append(event)
        kind = type(event)
        values_of = self._values_of.get(kind)
        if values_of is None:
            values_of = self._values_of[kind] = _values_of(kind)
        self._digest.update(f"{kind.__name__}{values_of(event)!r}".encode())

    def of(self, kind: type[E]) -> Iterator[E]:
        return (event for event in self.events if isinstance(event, kind))

    def digest(self) -> str:
        return self._digest.hexdigest()
