"""Plans are made when topics change, not with every heartbeat."""

from __future__ import annotations

import pytest

from millrace.groups.consumer.topics import ConsumerTopics
from millrace.groups.effects import Effects
from millrace.groups.errors import FencedMemberEpoch
from millrace.groups.streams.changes import StreamsChanges
from millrace.groups.streams.commands import StreamsSettings
from millrace.groups.streams.group import StreamsGroup
from millrace.groups.streams.member import StreamsMember
from millrace.groups.streams.topology import Topology
from tests.unit.groups.streams.topologies import word_count
from tests.unit.groups.streams_lab import StreamsLab


def changes_of(lab: StreamsLab) -> StreamsChanges:
    return StreamsChanges(ConsumerTopics(lambda: lab.image), lambda _: StreamsSettings())


def test_a_plan_is_kept_until_one_of_its_topics_changes() -> None:
    lab = StreamsLab()
    lab.set_topic("words", 2)
    changes, group = changes_of(lab), StreamsGroup("g")
    group.topology = Topology(word_count())
    first, found_hash = changes.plan_for(group, group.topology)
    assert changes.plan_for(group, group.topology) == (first, found_hash)
    lab.set_topic("unrelated", 1)
    assert changes.plan_for(group, group.topology)[0] is first
    lab.set_topic("words", 3)
    second, other_hash = changes.plan_for(group, group.topology)
    assert (second.task_counts, other_hash != found_hash) == ({"0": 3, "1": 3}, True)


def test_a_plan_for_another_topology_is_not_kept() -> None:
    lab = StreamsLab()
    changes, group = changes_of(lab), StreamsGroup("g")
    group.topology = Topology(word_count())
    changes.plan_for(group, Topology(word_count()))
    assert group.plan is None


def test_a_member_of_a_group_without_a_topology_joins_again() -> None:
    member = StreamsMember(member_id="m", epoch=4)
    with pytest.raises(FencedMemberEpoch):
        changes_of(StreamsLab()).topology_for(StreamsGroup("g"), member, None, Effects())


def test_an_initial_assignment_without_members_is_nothing() -> None:
    out = Effects()
    changes_of(StreamsLab()).initial_assignment("g", StreamsGroup("g"), out, 0)
    changes_of(StreamsLab()).initial_assignment("g", None, out, 0)
    assert out.records == []
