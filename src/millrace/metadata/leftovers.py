"""What a creation or deletion of many partitions leaves in the store when it is cut short, and its removal.

Such a change takes several transactions, and its broker may be gone before the last. Partitions that no
topic counts harm nobody, but would stay for ever. Whoever still works on them is not disturbed: the record
with which a creation begins is removed first, and after that the creation cannot end; and no partition is
removed while there is such a record, or when the topic has changed.
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
    topic_id: TopicId
    begun_at: int
    """The revision at which a creation began that has not ended; 0 without one."""
    topic: Compare | None
    """The topic that has not got these partitions, if there is one."""
    keys: tuple[str, ...]
    """Of the partitions, the last one first."""


def find_leftovers(image: Image) -> Iterator[Leftover]:
    """Whatever is unfinished, also what is being worked on."""
    for topic_id in sorted({**image.unclaimed, **image.creations}):
        numbers = sorted(image.unclaimed.get(topic_id, ()), reverse=True)
        topic = image.topics_by_id.get(topic_id)
        compare = None
        if topic is not None:
            if numbers and numbers[-1] != len(topic.partitions):
                # The topic counts them, but one before them is missing: damage, and nothing to remove.
                continue
            compare = Compare(records.topic_key(topic.name), topic.mod_revision)
        yield Leftover(
            topic_id,
            image.creations.get(topic_id, 0),
            compare,
            tuple(records.partition_key(topic_id, number) for number in numbers),
        )


def steps_to_clear(leftover: Leftover, guard: Compare, *, operations_max: int) -> Iterator[Step]:
    """One after the other; none after one that met a conflict. From the end on, so that what is left of a
    topic's new partitions always begins where the topic ends."""
    key = records.creation_key(leftover.topic_id)
    if leftover.begun_at:
        yield Step((guard, Compare(key, leftover.begun_at)), (), (key,))
    compares: tuple[Compare, ...] = (guard, Compare(key, ABSENT))
    if leftover.topic is not None:
        compares = (*compares, leftover.topic)
    for at in range(0, len(leftover.keys), operations_max):
        yield Step(compares, (), leftover.keys[at : at + operations_max])
