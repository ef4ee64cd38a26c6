"""Plans a read on the driver: chooses topics, turns bounds into offsets, cuts ranges into tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from millrace.client.broker_client import EARLIEST, LATEST, BrokerClient, ListedOffset, TopicInfo
from millrace.client.errors import InvalidOption
from millrace.core.ids import TopicId, TopicPartition
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.source.offsets import Marks
from millrace.pipeline.source.options import Bound, SourceOptions, missing_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets of one partition: from `start`, below `end`."""

    topic_id: TopicId
    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Planner:
    """Asks brokers on behalf of one read."""

    def __init__(self, client: BrokerClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options

    def topics(self, *, must_exist: bool = True) -> dict[str, TopicInfo]:
        """The topics that the options choose. A topic named must exist; a pattern may match none yet."""
        options = self._options
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            every = self._client.metadata()
            return {name: every[name] for name in sorted(every) if _is_chosen(every[name], pattern)}
        names = options.topics or tuple(dict.fromkeys(each.topic for each in options.assigned))
        found = self._client.metadata(names)
        missing = [name for name in names if name not in found]
        if missing and must_exist:
            raise PipelineError(f"no such topic: {', '.join(missing)} (at {options.bootstrap})")
        return {name: found[name] for name in names if name in found}

    def partitions(self, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
        """The partitions to read: all of the topics, or those assigned."""
        if not self._options.assigned:
            return [
                TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions
            ]
        present = [each for each in self._options.assigned if each.topic in topics]
        for each in present:
            if each.partition not in topics[each.topic].partitions:
                count = len(topics[each.topic].partitions)
                raise InvalidOption(f"assign: {each} does not exist, {each.topic} has {count} partitions")
        return present

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ListedOffset]:
        return self._client.list_offsets(dict.fromkeys(partitions, LATEST), self._options.isolation)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ListedOffset]:
        return self._client.list_offsets(dict.fromkeys(partitions, EARLIEST), self._options.isolation)

    def first_at(self, partitions: list[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """The first offset with a record of that time or a later one; partitions without one are left out."""
        listed = self._client.list_offsets(dict.fromkeys(partitions, timestamp_ms), self._options.isolation)
        return {each: found.offset for each, found in listed.items() if found.offset >= 0}

    def starting(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the options say that reading starts."""
        bound = self._options.starting
        found = self._resolve(bound, partitions)
        late = [each for each in partitions if found[each] < 0]
        if late and not self._options.latest_if_too_young:
            raise InvalidOption(
                f"{bound.option}: {_names(late)} has no record as young as that; "
                "startingOffsetsByTimestampStrategy=latest starts at the end instead"
            )
        if late:
            found |= {each: listed.offset for each, listed in self.latest(late).items()}
        return found

    def ending(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the options say that a batch read ends; the end itself if no record is as young as asked."""
        found = self._resolve(self._options.ending, partitions)
        late = [each for each in partitions if found[each] < 0]
        if late:
            found |= {each: listed.offset for each, listed in self.latest(late).items()}
        return found

    def _resolve(self, bound: Bound, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """An offset for each partition; -1 where no record is as young as asked for."""
        if bound.kind in ("offsets", "timestamps"):
            self._check_covered(bound, partitions)
            asked = {each: bound.number(each) or 0 for each in partitions}
            if bound.kind == "offsets":
                return self._resolve_offsets(asked)
        else:
            moments = {"earliest": EARLIEST, "latest": LATEST}
            asked = dict.fromkeys(partitions, moments.get(bound.kind, bound.timestamp_ms))
        listed = self._client.list_offsets(asked, self._options.isolation)
        return {each: listed[each].offset for each in partitions}

    def _resolve_offsets(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        special = {each: number for each, number in asked.items() if number < 0}
        listed = self._client.list_offsets(special, self._options.isolation) if special else {}
        return {each: listed[each].offset if each in listed else number for each, number in asked.items()}

    def _check_covered(self, bound: Bound, partitions: list[TopicPartition]) -> None:
        missing = missing_partitions(bound, partitions)
        if missing:
            raise InvalidOption(f"{bound.option} says nothing about {_names(missing)}: name every partition")
        known = set(partitions)
        named = [TopicPartition(topic, number) for topic, each in bound.numbers.items() for number in each]
        unknown = [each for each in named if each not in known]
        if unknown:
            raise InvalidOption(f"{bound.option} names {_names(unknown)}, which is not read")

    def cuts(self, marks: Marks) -> dict[TopicPartition, int]:
        """Where partitions' logs were cut below a place that had been read, in an unclean election."""
        known = {each: mark.epoch for each, mark in marks.items() if mark.epoch >= 0}
        if not known:
            return {}
        ends = self._client.epoch_end_offsets(known)
        return {each: end for each, (_, end) in ends.items() if 0 <= end < marks[each].offset}


def _is_chosen(topic: TopicInfo, pattern: re.Pattern[str]) -> bool:
    return not topic.is_internal and pattern.fullmatch(topic.name) is not None


def _names(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(str(each) for each in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"


def split_ranges(ranges: list[Range], min_partitions: int, max_records: int) -> list[Range]:
    """Cut ranges into at least `min_partitions` tasks of about the same size, none above `max_records`."""
    filled = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in filled)
    tasks: list[Range] = []
    for each in filled:
        parts = 1
        if min_partitions > len(filled):
            parts = -(-min_partitions * each.size // total)
        if max_records:
            parts = max(parts, -(-each.size // max_records))
        parts = min(parts, each.size)
        bounds = [each.start + each.size * part // parts for part in range(parts + 1)]
        tasks += [
            Range(topic_id=each.topic_id, partition=each.partition, start=start, end=end)
            for start, end in pairwise(bounds)
        ]
    return tasks


def share(
    limit: int, sizes: Mapping[TopicPartition, int], weights: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """How many offsets of each partition to take, in proportion, so that their weights stay within `limit`.

    Each partition that has any moves by one at least, or a small limit would stop it for ever.
    """
    total = sum(size * weights[each] for each, size in sizes.items())
    if total <= limit:
        return dict(sizes)
    return {each: min(size, max(1, int(size * limit / total))) for each, size in sizes.items() if size > 0}
