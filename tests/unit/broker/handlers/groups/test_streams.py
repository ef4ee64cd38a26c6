"""StreamsGroupHeartbeat as clients see it; the answers are those of Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

from millrace.metadata.topic_names import AUDIT_TOPIC
from millrace.security.acls.binding import Operation, ResourceType
from millrace.wire.error_codes import ErrorCode
from millrace.wire.messages.delete_groups import DeleteGroupsRequest
from millrace.wire.messages.describe_groups import DescribeGroupsRequest
from millrace.wire.messages.find_coordinator import FindCoordinatorRequest
from millrace.wire.messages.list_groups import ListGroupsRequest
from millrace.wire.messages.streams_group_heartbeat import (
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestEndpoint,
    StreamsGroupHeartbeatRequestTaskIds,
    Subtopology,
    TopicInfo,
    Topology,
)
from tests.unit.broker.handlers.broker import ADMIN, RESTRICTED, Broker
from tests.unit.security.acls.models import acl

MISSING_INTERNAL_TOPICS = 3


def counting(source: str = "t", **configs: str) -> Topology:
    """Reads a topic, regroups it, and keeps counts."""
    return Topology(
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=[source], repartition_sink_topics=["g-regrouped"]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name="g-regrouped")],
                state_changelog_topics=[
                    TopicInfo(
                        name="g-counts",
                        replication_factor=1,
                        topic_configs=[KeyValue(key=key, value=value) for key, value in configs.items()],
                    )
                ],
            ),
        ]
    )


def join(topology: Topology | None = None, **values: Any) -> StreamsGroupHeartbeatRequest:
    request: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "endpoint_information_epoch": -1,
        "rebalance_timeout_ms": 10_000,
        "topology": counting() if topology is None else topology,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p",
        "client_tags": [KeyValue(key="zone", value="z")],
        "user_endpoint": StreamsGroupHeartbeatRequestEndpoint(host="here", port=80),
    }
    return StreamsGroupHeartbeatRequest(**{**request, **values})


def beat(broker: Broker, request: StreamsGroupHeartbeatRequest, as_user: str | None = None) -> Any:
    return broker.ask(request, 0, as_user=as_user)


def test_a_member_joins_stays_and_leaves_and_its_topics_are_made(groups: Broker) -> None:
    joined = beat(groups, join(counting(**{"cleanup.policy": "compact"})))
    assert (joined.error_code, joined.member_id, joined.heartbeat_interval_ms) == (0, "m", 5_000)
    assert joined.status == [], "its topics are there before it is answered"
    assert [(each.subtopology_id, each.partitions) for each in joined.active_tasks] == [
        ("0", [0, 1, 2]),
        ("1", [0, 1, 2]),
    ]
    assert (joined.standby_tasks, joined.warmup_tasks) == ([], [])
    (endpoint,) = joined.partitions_by_user_endpoint
    assert (endpoint.user_endpoint.host, endpoint.user_endpoint.port) == ("here", 80)
    assert [each.topic for each in endpoint.active_partitions] == ["t", "g-regrouped"]
    image = groups.metadata.image
    assert [len(image.topics[name].partitions) for name in ("g-regrouped", "g-counts")] == [3, 3]
    assert image.topics["g-counts"].configs == {"cleanup.policy": "compact"}
    stayed = beat(
        groups,
        StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=joined.member_epoch,
            endpoint_information_epoch=joined.endpoint_information_epoch,
        ),
    )
    assert (stayed.error_code, stayed.member_epoch, stayed.active_tasks) == (0, joined.member_epoch, None)
    assert stayed.partitions_by_user_endpoint is None
    left = beat(groups, StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1))
    assert (left.error_code, left.member_epoch) == (0, -1)


def test_owned_tasks_are_checked(groups: Broker) -> None:
    joined = beat(groups, join())
    owned = [StreamsGroupHeartbeatRequestTaskIds(subtopology_id="9", partitions=[0])]
    answer = beat(
        groups,
        StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=joined.member_epoch,
            active_tasks=owned,
            standby_tasks=[],
            warmup_tasks=[],
        ),
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "Subtopology 9 does not exist" in answer.error_message


def test_topics_that_cannot_be_made_are_told(groups: Broker) -> None:
    answer = beat(groups, join(counting(**{"cleanup.policy": "nonsense"})))
    (status,) = answer.status
    assert (answer.error_code, status.status_code) == (0, MISSING_INTERNAL_TOPICS)
    assert "Creation failed: g-counts (" in status.status_detail
    assert answer.active_tasks == []


def test_a_topology_may_not_name_internal_or_impossible_topics(groups: Broker) -> None:
    for name, why in (
        ("__consumer_offsets", "is prohibited"),
        (AUDIT_TOPIC, "is prohibited"),
        ("bad name", "not valid topic names"),
    ):
        answer = beat(groups, join(counting(name)))
        assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        assert why in answer.error_message


def test_a_topology_that_cannot_work_is_refused(groups: Broker) -> None:
    answer = beat(groups, join(Topology(subtopologies=[Subtopology(subtopology_id="0")])))
    assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_operators_see_and_delete_streams_groups(groups: Broker) -> None:
    beat(groups, join())
    (listed,) = groups.ask(ListGroupsRequest(types_filter=["Streams"]), 5).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type) == ("g", "streams", "streams")
    assert listed.group_state == "Stable"
    (described,) = groups.ask(DescribeGroupsRequest(groups=["g"]), 6).groups
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (result,) = groups.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP
    beat(groups, StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1))
    (result,) = groups.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert result.error_code == 0
    assert groups.ask(ListGroupsRequest(), 5).groups == []


def test_who_may_not_create_topics_is_told_which(tmp_path: Any) -> None:
    broker = Broker(tmp_path, RESTRICTED)
    broker.start()
    broker.create_topic("t", 3)
    broker.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4, as_user=ADMIN.name)
    reader = "User:reader"
    broker.allow(
        acl("g", Operation.READ, reader, resource_type=ResourceType.GROUP),
        *(acl(name, Operation.DESCRIBE, reader) for name in ("t", "g-regrouped", "g-counts")),
        acl("g-counts", Operation.CREATE, reader),
    )
    answer = beat(broker, join(), as_user="reader")
    (status,) = answer.status
    assert "Unauthorized to CREATE on topics g-regrouped." in status.status_detail
    assert "g-counts" not in broker.metadata.image.topics, "all or none"
    broker.allow(acl("g-regrouped", Operation.CREATE, reader))
    assert beat(broker, join(), as_user="reader").status == []
    broker.stop()
