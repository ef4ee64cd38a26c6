"""StreamsGroupDescribe as clients see it."""

from __future__ import annotations

from typing import Any

from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from tests.unit.broker.handlers.broker import Broker
from tests.unit.broker.handlers.groups.test_streams import beat, counting, join


def describe(broker: Broker, group_id: str = "g") -> Any:
    request = StreamsGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
    return broker.ask(request, 0).groups[0]


def test_a_group_is_described_with_its_topology_and_its_tasks(groups: Broker) -> None:
    joined = beat(groups, join(rack_id="r"))
    group = describe(groups)
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert group.group_epoch == group.assignment_epoch == joined.member_epoch
    first, second = group.topology.subtopologies
    assert (group.topology.epoch, first.source_topics, first.repartition_sink_topics) == (
        0,
        ["t"],
        ["g-regrouped"],
    )
    (changelog,) = second.state_changelog_topics
    assert (changelog.name, changelog.partitions, changelog.replication_factor) == ("g-counts", 3, 1)
    assert [topic.partitions for topic in second.repartition_source_topics] == [3]
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.process_id) == ("m", joined.member_epoch, "p")
    assert (member.rack_id, member.client_id, member.topology_epoch) == ("r", "test", 0)
    assert (member.user_endpoint.host, member.user_endpoint.port) == ("here", 80)
    assert [(tag.key, tag.value) for tag in member.client_tags] == [("zone", "z")]
    for assignment in (member.assignment, member.target_assignment):
        tasks = [(each.subtopology_id, each.partitions) for each in assignment.active_tasks]
        assert tasks == [("0", [0, 1, 2]), ("1", [0, 1, 2])]
        assert (assignment.standby_tasks, assignment.warmup_tasks) == ([], [])
    assert group.authorized_operations != -(2**31)


def test_a_group_that_waits_for_topics_shows_what_its_members_told(groups: Broker) -> None:
    beat(groups, join(counting("missing")))
    group = describe(groups)
    assert group.group_state == "NotReady"
    assert group.topology.subtopologies[1].state_changelog_topics[0].partitions == 0


def test_other_groups_are_not_found(groups: Broker) -> None:
    absent = describe(groups, "none")
    assert (absent.error_code, absent.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group none not found.",
    )
    groups.ask(
        ConsumerGroupHeartbeatRequest(
            group_id="c",
            member_id="m",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        1,
    )
    assert describe(groups, "c").error_message == "Group c is not a streams group."
