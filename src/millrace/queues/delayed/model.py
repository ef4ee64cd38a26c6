"""What the produce path hands to the store of delayed messages, and what it expects of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId
from millrace.wire.records import Header

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

DELIVER_AT: Final = "millrace-deliver-at"
"""When a record is to be seen, in ms since 1970, as text."""
DELAY_MS: Final = "millrace-delay-ms"
"""How long after it was made a record is to be seen, in ms, as text."""
CANCEL: Final = "millrace-delay-cancel"
"""The offset of a delayed record of the same partition that is not to be delivered. The record with this
header never appears."""
REPLACE: Final = "millrace-delay-replace"
"""The offset of a delayed record of the same partition whose place the record with this header takes."""
SCHEDULED_AT: Final = "millrace-scheduled-at"
"""On delivery: when the record was produced, in ms since 1970, as text."""


class DelayedRecord(NamedTuple):
    """A record that is not to be seen yet, or the word that an earlier one is not to be seen at all. Topic,
    partition and offset are its id: the offset is reserved in the topic's log, and was answered to the
    producer. The same id may be added again, with the same content."""

    topic: str
    topic_id: TopicId
    partition: int
    offset: int
    due_ms: int
    produced_ms: int
    """What `millrace-scheduled-at` will say."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    """Those of the producer, without the ones that say when and instead of what."""
    replaces: int = -1
    """The offset of the delayed record that goes when this one comes; -1 for none. It may be unknown by
    now."""
    is_cancellation: bool = False
    """Whether nothing is to be delivered in its place."""
    is_repeated: bool = False
    """Whether it may be stored already, because its batch came a second time: then the store looks for it."""


class DelayedStoreAbsent(MillraceError):
    """Delayed records cannot be taken, because this broker has no place for them yet."""

    def __init__(self) -> None:
        super().__init__("this broker cannot keep delayed records yet; try again later")


class DelayedStore(Protocol):
    """Where delayed records wait."""

    def add(self, records: Sequence[DelayedRecord]) -> asyncio.Future[MillraceError | None]:
        """Store them; the outcome is there when they are committed, or when it is known that they may not
        be."""
        ...
