"""How far a source has read: an offset for each partition, with the topic's id and the leader's epoch.

The id tells a topic from another one that was made later under its name; the epoch tells whether a partition
lost records in an unclean election.

Spark keeps the end of each batch and takes the end of the one before for its start. Where there is none it
asks the source for its first offset, and asks again whenever it plans or runs that batch, after a restart
too: an answer such as "the end of the topic" would be another one each time. So the first offset says nothing
(NOT_BEGUN), and the end of a batch also says where the batch starts, in partitions that no batch had before
and in those where it is not the end of the batch before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from millrace.core.ids import TopicId, TopicPartition, format_topic_id, parse_topic_id
from millrace.pipeline.errors import PipelineError

NOT_BEGUN: Final = {"@": "before the first batch"}
"""The offset before the first batch. No topic has this name, and no checkpoint holds it."""


class Mark(NamedTuple):
    """One partition's place. `epoch` is -1 where the broker did not say."""

    topic_id: TopicId
    offset: int
    epoch: int
    start: int | None = None
    """Where the batch that ends here starts, unless that is where the one before it ended."""


Marks: TypeAlias = dict[TopicPartition, Mark]


def to_json(marks: Mapping[TopicPartition, Mark]) -> dict[str, Any]:
    """Marks as Spark keeps them: the same marks are always the same text, because Spark compares texts."""
    topics: dict[str, Any] = {}
    for partition in sorted(marks):
        mark = marks[partition]
        topic = topics.setdefault(partition.topic, {"id": format_topic_id(mark.topic_id), "partitions": {}})
        place = {"offset": mark.offset, "epoch": mark.epoch}
        if mark.start is not None:
            place["start"] = mark.start
        topic["partitions"][str(partition.partition)] = place
    return topics


def from_json(kept: Mapping[str, Any]) -> Marks:
    """The inverse; PipelineError for what this source never wrote."""
    marks: Marks = {}
    try:
        for topic, state in kept.items():
            topic_id = parse_topic_id(state["id"])
            for number, place in state["partitions"].items():
                start = place.get("start")
                marks[TopicPartition(topic, int(number))] = Mark(
                    topic_id, int(place["offset"]), int(place["epoch"]), None if start is None else int(start)
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            "the checkpoint holds an offset that this source did not write: was it another format's query? "
            f"({kept})"
        ) from error
    return marks
