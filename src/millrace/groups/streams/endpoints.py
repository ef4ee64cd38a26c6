"""Which partitions the tasks of members read, and where members answer queries about their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millrace.groups.streams.commands import EndpointPartitions
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.tasks import Role, of_role
from millrace.groups.streams.topology import Topology, read_topics


def endpoint_partitions(
    members: Iterable[StreamsMember], topology: Topology, partitions_of: Callable[[str], int | None]
) -> tuple[EndpointPartitions, ...]:
    """The endpoints of those members that have one, with the partitions of their tasks."""
    return tuple(
        EndpointPartitions(
            member.endpoint,
            task_partitions(member, Role.ACTIVE, topology, partitions_of),
            task_partitions(member, Role.STANDBY, topology, partitions_of),
        )
        for member in members
        if member.endpoint is not None
    )


def task_partitions(
    member: StreamsMember, role: Role, topology: Topology, partitions_of: Callable[[str], int | None]
) -> list[tuple[str, list[int]]]:
    """The partitions that a member's tasks read. A topic with fewer partitions than others of its subtopology
    has none for some of the tasks."""
    found: list[tuple[str, list[int]]] = []
    for name, numbers in of_role(member.assigned, role):
        subtopology = topology.subtopologies.get(name)
        for topic in () if subtopology is None else read_topics(subtopology):
            count = partitions_of(topic) or 0
            found.append((topic, [number for number in numbers if number < count]))
    return found
