"""What the cluster's topics make of a topology: how many tasks there are, which internal topics are missing,
and what keeps the application from working.

A repartition topic has as many partitions as it asks for; else as many as the largest topic that the writing
subtopology reads; and topics that are joined have equal numbers. A changelog topic has one partition for each
task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.groups.errors import InvalidTopology
from millrace.groups.streams.commands import NewInternalTopic, Status, StatusCode
from millrace.groups.streams.topology import Topology, internal_topics, read_topics
from millrace.wire.messages.streams_group_records import Subtopology, TopicInfo

SHOWN_MAX: Final = 3
"""How many topics a message names."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a topology is carried out with the topics of one moment."""

    problem: Status | None
    """Why the group cannot work yet; None if all is ready."""
    task_counts: Mapping[str, int]
    """The number of tasks of every subtopology; empty while that cannot be told."""
    partition_counts: Mapping[str, int]
    """The number of partitions of every internal topic."""
    missing: tuple[NewInternalTopic, ...] = ()

    @property
    def is_ready(self) -> bool:
        return self.problem is None


def plan(topology: Topology, partitions_of: Callable[[str], int | None]) -> Plan:
    """Work out the plan. `partitions_of` tells how many partitions a topic has, None if it is not there.
    Raises InvalidTopology for a topology that no topics can satisfy."""
    try:
        return _Planning(topology, partitions_of).plan()
    except _Unfit as unfit:
        return Plan(Status(unfit.code, str(unfit)), {}, {})


class _Unfit(Exception):
    """The topics that are there do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _Planning:
    def __init__(self, topology: Topology, partitions_of: Callable[[str], int | None]) -> None:
        self._subtopologies = topology.subtopologies
        self._partitions_of = partitions_of
        self._counts: dict[str, int] = {}
        """The numbers of partitions that internal topics are to have, as far as they are decided."""

    def plan(self) -> Plan:
        self._check_sources()
        self._decide_repartition_topics()
        for subtopology in self._subtopologies.values():
            self._decide_joined(subtopology)
        task_counts = {name: self._task_count(each) for name, each in self._subtopologies.items()}
        for name, subtopology in self._subtopologies.items():
            for topic in subtopology.state_changelog_topics:
                self._counts[topic.name] = task_counts[name]
        missing = self._missing_topics()
        problem = None
        if missing:
            names = _summary([topic.name for topic in missing])
            problem = Status(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}")
        return Plan(problem, task_counts, dict(self._counts), missing)

    def _check_sources(self) -> None:
        missing: dict[str, None] = {}
        for name, subtopology in self._subtopologies.items():
            if not read_topics(subtopology):
                raise InvalidTopology(f"subtopology {name} reads no topic")
            for topic in internal_topics(subtopology):
                if topic.partitions < 0:
                    raise InvalidTopology(f"topic {topic.name} asks for {topic.partitions} partitions")
            for source in subtopology.source_topics:
                if self._partitions_of(source) is None:
                    missing[source] = None
        if missing:
            detail = f"Source topics {_summary(sorted(missing))} are missing."
            raise _Unfit(StatusCode.MISSING_SOURCE_TOPICS, detail)

    def _decide_repartition_topics(self) -> None:
        wanted = [topic for each in self._subtopologies.values() for topic in each.repartition_source_topics]
        self._counts.update((topic.name, topic.partitions) for topic in wanted if topic.partitions)
        open_writers = list(self._subtopologies.values())
        while open_writers:
            waiting = [each for each in open_writers if not self._decide_written(each)]
            if len(waiting) == len(open_writers):
                raise InvalidTopology("a loop of repartition topics leaves their partitions open")
            open_writers = waiting
        for topic in wanted:
            if topic.name not in self._counts:
                raise InvalidTopology(f"nothing writes to the repartition topic {topic.name}")

    def _decide_written(self, subtopology: Subtopology) -> bool:
        """Decide the topics that a subtopology writes to; False if what it reads is not decided yet."""
        undecided = [name for name in subtopology.repartition_sink_topics if name not in self._counts]
        if not undecided:
            return True
        read = [self._counts.get(topic.name) for topic in subtopology.repartition_source_topics]
        read += [self._partitions_of(name) for name in subtopology.source_topics]
        known = [count for count in read if count is not None]
        if not known:
            return False
        self._counts.update(dict.fromkeys(undecided, max(known)))
        return True

    def _decide_joined(self, subtopology: Subtopology) -> None:
        """Give the topics that are joined with each other one number of partitions."""
        sources, repartition = subtopology.source_topics, subtopology.repartition_source_topics
        for group in subtopology.copartition_groups:
            try:
                external = [sources[place] for place in _places(group.source_topics)]
                internal = [repartition[place] for place in _places(group.repartition_source_topics)]
            except IndexError:
                raise InvalidTopology("a copartition group names a topic that is not there") from None
            if internal or external:
                self._decide_group(external, internal)

    def _decide_group(self, external: Iterable[str], internal: list[TopicInfo]) -> None:
        counts = {name: self._count_of(name) for name in external}
        fixed = {topic.name: topic.partitions for topic in internal if topic.partitions}
        # Topics that are there already decide; then those that ask for a number; then the largest.
        deciding = counts or fixed
        if len(set(deciding.values())) > 1:
            raise _Unfit(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Following topics do not have the same number of partitions: {_listed(deciding)}",
            )
        if deciding:
            decided = next(iter(deciding.values()))
        else:
            decided = max(self._count_of(topic.name) for topic in internal)
        for name, asked in fixed.items():
            if asked != decided:
                raise _Unfit(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Repartition topic {name} asks for {asked} partitions, and is joined with topics that "
                    f"have {decided}",
                )
        self._counts.update((topic.name, decided) for topic in internal)

    def _task_count(self, subtopology: Subtopology) -> int:
        return max(self._count_of(name) for name in read_topics(subtopology))

    def _count_of(self, name: str) -> int:
        """A topic's present number of partitions, or the one that it will get."""
        present = self._partitions_of(name)
        return self._counts[name] if present is None else present

    def _missing_topics(self) -> tuple[NewInternalTopic, ...]:
        missing: dict[str, NewInternalTopic] = {}
        for subtopology in self._subtopologies.values():
            for topic in internal_topics(subtopology):
                wanted = topic.partitions or self._counts[topic.name]
                present = self._partitions_of(topic.name)
                if present is None:
                    missing[topic.name] = NewInternalTopic(
                        topic.name,
                        wanted,
                        topic.replication_factor or -1,
                        {config.key: config.value for config in topic.topic_configs},
                    )
                elif present != wanted:
                    raise _Unfit(
                        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Existing topic {topic.name} has different number of partitions: expected {wanted}, "
                        f"found {present}",
                    )
        return tuple(missing[name] for name in sorted(missing))


def _places(numbers: Iterable[int]) -> list[int]:
    """Places in a list; one below zero would count from its end."""
    found = list(numbers)
    if any(number < 0 for number in found):
        raise IndexError
    return found


def _summary(names: list[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more} additional topics" if more > 0 else "")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} has {counts[name]}" for name in sorted(counts))
