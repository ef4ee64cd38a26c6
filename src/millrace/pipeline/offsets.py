"""How far a source has read: an offset for each partition, with the topic's id and the leader's epoch.

The id tells a topic from another one that was made later under its name; the epoch tells whether a partition
lost records in an unclean election.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from millrace.core.ids import TopicId, TopicPartition, format_topic_id, parse_topic_id
from millrace.pipeline.errors import PipelineError


class Mark(NamedTuple):
    """One partition's place. `epoch` is -1 where the broker did not say."""

    topic_id: TopicId
    offset: int
    epoch: int


Marks: TypeAlias = dict[TopicPartition, Mark]


def to_json(marks: Mapping[TopicPartition, Mark]) -> dict[str, Any]:
    """As Spark keeps it: the same marks are always the same text, because Spark compares texts."""
    topics: dict[str, Any] = {}
    for partition in sorted(marks):
        mark = marks[partition]
        topic = topics.setdefault(partition.topic, {"id": format_topic_id(mark.topic_id), "partitions": {}})
        topic["partitions"][str(partition.partition)] = {"offset": mark.offset, "epoch": mark.epoch}
    return topics


def from_json(kept: Mapping[str, Any]) -> Marks:
    """The inverse; PipelineError for what this source never wrote."""
    marks: Marks = {}
    try:
        for topic, state in kept.items():
            topic_id = parse_topic_id(state["id"])
            for number, place in state["partitions"].items():
                marks[TopicPartition(topic, int(number))] = Mark(
                    topic_id, int(place["offset"]), int(place["epoch"])
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            "the checkpoint holds an offset that this source did not write: was it another format's query? "
            f"({kept})"
        ) from error
    return marks
