"""What a creation or deletion of many partitions leaves in the store when it is cut short, and its removal.

Such a change takes several transactions, and its broker may be gone before the last. Partitions that no
topic counts harm nobody, but would stay for ever. Clearing up does not disturb those who still work on them:
it first removes the record with which a creation begins, after which the creation cannot end; and it removes
no partition while there is such a record, or when the topic has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace.core.ids import TopicId
from millrace.metadata import records
from millrace.metadata.batching import Step
from millrace.metadata.image import Image
from millrace.metadata.store import ABSENT, Compare


class Leftover(NamedTuple):
    """What an unfinished creation or deletion has left of one topic."""

    topic_id: TopicId
    begun_at: int
    """The revision at which an unfinished creation began; 0 without one."""
    topic: Compare | None
    """The topic that does not count these partitions, if there is one."""
    keys: tuple[str, ...]
    """The keys of the partitions, the last one first."""


def find_leftovers(image: Image) -> Iterator[Leftover]:
    """All that is unfinished, also what somebody still works on."""
    for topic_id in sorted({**image.unclaimed, **image.creations}):
        numbers = sorted(image.unclaimed.get(topic_id, ()), reverse=True)
        topic = image.topics_by_id.get(topic_id)
        compare = None
        if topic is not None:
            if numbers and numbers[-1] != len(topic.partitions):
                # The topic counts these partitions, but one before them is missing: that is damage, not a
                # leftover.
                continue
            compare = Compare(records.topic_key(topic.name), topic.mod_revision)
        yield Leftover(
            topic_id,
            image.creations.get(topic_id, 0),
            compare,
            tuple(records.partition_key(topic_id, number) for number in numbers),
        )


def steps_to_clear(leftover: Leftover, guard: Compare, *, operations_max: int) -> Iterator[Step]:
    """The steps, to be committed in this order until one meets a conflict. They begin at the end, so that
    what is left of a topic's new partitions always begins where the topic ends."""
    key = records.creation_key(leftover.topic_id)
    if leftover.begun_at:
        yield Step((guard, Compare(key, leftover.begun_at)), (), (key,))
    compares: tuple[Compare, ...] = (guard, Compare(key, ABSENT))
    if leftover.topic is not None:
        compares = (*compares, leftover.topic)
    for at in range(0, len(leftover.keys), operations_max):
        yield Step(compares, (), leftover.keys[at : at + operations_max])
