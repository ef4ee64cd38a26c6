"""Who gets which partition: the server-side assignors of consumer groups, by the names that clients use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from millrace.groups.assignors.model import Assignor, GroupAssignment, MemberSpec, Partitions, TopicShape
from millrace.groups.assignors.ranges import assign_ranges
from millrace.groups.assignors.uniform import assign_uniform

__all__: Final = ["ASSIGNORS", "Assignor", "GroupAssignment", "MemberSpec", "Partitions", "TopicShape"]

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_ranges}
)
