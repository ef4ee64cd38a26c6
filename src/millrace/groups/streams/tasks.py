"""Tasks of Kafka Streams: which part of a topology works on which partitions, and in which role.

A task is a number within a place, and a place is a role with a subtopology. So what a member owns looks the
same as the partitions of a consumer: numbers by place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias


class Role(IntEnum):
    """What a member does with a task. The order is that of Kafka's records and messages."""

    ACTIVE = 0
    """It works on the task's partitions; one member at a time does."""
    STANDBY = 1
    """It keeps a copy of the task's state."""
    WARMUP = 2
    """It builds up the task's state before it takes over. Kafka 4.3 assigns none yet."""


TaskPlace: TypeAlias = tuple[Role, str]
"""A role and the id of a subtopology."""
Tasks: TypeAlias = Mapping[TaskPlace, frozenset[int]]
TasksWithEpochs: TypeAlias = Mapping[TaskPlace, Mapping[int, int]]
"""Tasks, each with the epoch in which the member got it. Only active ones have it stored."""
OwnedTasks: TypeAlias = Sequence[tuple[TaskPlace, Sequence[int]]]
"""What a member says it owns."""

NO_TASKS: Final[Tasks] = {}
NO_OWNED_TASKS: Final[TasksWithEpochs] = {}


def of_role(tasks: Mapping[TaskPlace, Iterable[int]], role: Role) -> list[tuple[str, list[int]]]:
    """The tasks of one role: subtopologies with their numbers, both sorted."""
    return [
        (subtopology, sorted(tasks[role, subtopology]))
        for found, subtopology in sorted(tasks)
        if found is role
    ]
