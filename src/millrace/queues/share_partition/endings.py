"""What a record becomes when a delivery of it ends."""

from __future__ import annotations

from collections.abc import Callable

from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.backoff import not_before_ms
from millrace.queues.share_partition.changes import DeadLetterCause
from millrace.queues.share_partition.model import AcknowledgeType, RecordState
from millrace.queues.share_partition.runs import ACKNOWLEDGED, ARCHIVED, FRESH, Mark


class Endings:
    """The ends of deliveries as the settings want them."""

    __slots__ = ("jitter", "settings")

    def __init__(self, settings: ShareSettings, jitter: Callable[[], float]) -> None:
        self.settings = settings
        self.jitter = jitter

    def acknowledged(self, mark: Mark, kind: AcknowledgeType, now_ms: int) -> Mark:
        """What acquired records become that their member says this of."""
        if kind is AcknowledgeType.ACCEPT:
            return ACKNOWLEDGED
        if kind is AcknowledgeType.GAP:
            return ARCHIVED
        if kind is AcknowledgeType.REJECT:
            return self.given_up(mark, DeadLetterCause.REJECTED)
        assert kind is AcknowledgeType.RELEASE, kind
        return self.released(mark, now_ms, counts=not self.settings.counts_failures_only)

    def released(self, mark: Mark, now_ms: int, *, counts: bool = True) -> Mark:
        """What acquired records become that nobody processes now. The limit is looked at here, where a
        delivery ends, so a limit that was lowered still allows the delivery that was under way."""
        count = mark.delivery_count if counts else mark.delivery_count - 1
        if count >= self.settings.delivery_count_limit:
            return self.given_up(mark, DeadLetterCause.DELIVERY_LIMIT)
        until_ms = not_before_ms(self.settings, mark.delivery_count, now_ms=now_ms, jitter=self.jitter)
        return Mark(RecordState.AVAILABLE, count, until_ms, "", mark.size)

    def given_up(self, mark: Mark, cause: DeadLetterCause) -> Mark:
        if not self.settings.dead_letter_topic:
            return ARCHIVED
        return Mark(RecordState.ARCHIVING, mark.delivery_count, cause=cause)


def given_back(mark: Mark) -> Mark:
    """What acquired records become whose member closes in order: as if they had never been delivered."""
    if mark.delivery_count == 1:
        return FRESH
    return Mark(RecordState.AVAILABLE, mark.delivery_count - 1, 0, "", mark.size)
