from __future__ import annotations

import pytest

from millrace.queues.settings import ShareSettings
from millrace.queues.share_partition.changes import DeadLetterCause
from millrace.queues.share_partition.endings import Endings, given_back
from millrace.queues.share_partition.model import AcknowledgeType, RecordState
from millrace.queues.share_partition.runs import ACKNOWLEDGED, ARCHIVED, FRESH, Mark

HELD = Mark(RecordState.ACQUIRED, 2, 500, "a", 10)


def _endings(**settings: object) -> Endings:
    return Endings(ShareSettings(**settings), lambda: 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind, mark",
    [
        (AcknowledgeType.ACCEPT, ACKNOWLEDGED),
        (AcknowledgeType.GAP, ARCHIVED),
        (AcknowledgeType.REJECT, ARCHIVED),
        (AcknowledgeType.RELEASE, Mark(RecordState.AVAILABLE, 2, 0, "", 10)),
    ],
)
def test_the_member_says_how_a_delivery_ends(kind: AcknowledgeType, mark: Mark) -> None:
    assert _endings().acknowledged(HELD, kind, 100) == mark


def test_given_up_with_a_dead_letter_the_record_is_kept() -> None:
    endings = _endings(dead_letter_topic="d", delivery_count_limit=2)
    assert endings.released(HELD, 100) == Mark(RecordState.ARCHIVING, 2, cause=DeadLetterCause.DELIVERY_LIMIT)


def test_a_delivery_that_does_not_count_is_taken_off() -> None:
    endings = _endings(counts_failures_only=True, delivery_count_limit=2, retry_backoff_ms=50)
    released = endings.acknowledged(HELD, AcknowledgeType.RELEASE, 100)
    assert released == Mark(RecordState.AVAILABLE, 1, 200, "", 10)


def test_given_back_as_if_it_had_not_been_delivered() -> None:
    assert given_back(HELD) == Mark(RecordState.AVAILABLE, 1, 0, "", 10)
    assert given_back(HELD._replace(delivery_count=1)) == FRESH
