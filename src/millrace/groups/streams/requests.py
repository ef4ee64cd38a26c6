"""What a heartbeat of the streams protocol must look like, whatever state its group is in."""

from __future__ import annotations

from millrace.groups.consumer.commands import LEAVING_FOR_A_WHILE, UNCHANGED
from millrace.groups.errors import InvalidHeartbeat, InvalidTopology
from millrace.groups.streams.commands import JOINING, StreamsHeartbeat
from millrace.wire.messages.streams_group_records import StreamsGroupTopologyValue


def check_heartbeat(beat: StreamsHeartbeat) -> None:
    """Raises InvalidHeartbeat or InvalidTopology for a heartbeat that contradicts itself, or that asks for
    what Kafka 4.3 does not have either."""
    _check_features(beat)
    for value, name in ((beat.member_id, "MemberId"), (beat.group_id, "GroupId"), (beat.rack, "RackId")):
        if value == "":
            raise InvalidHeartbeat(f"{name} can't be empty.")
    tasks = (beat.active, beat.standby, beat.warmup)
    if beat.member_epoch == JOINING:
        if beat.rebalance_timeout_ms == UNCHANGED:
            raise InvalidHeartbeat("RebalanceTimeoutMs must be provided in first request.")
        for owned, name in zip(tasks, ("ActiveTasks", "StandbyTasks", "WarmupTasks"), strict=True):
            if owned is None or owned:
                raise InvalidHeartbeat(f"{name} must be empty when (re-)joining.")
        if beat.topology is None:
            raise InvalidHeartbeat("Topology must be non-null when (re-)joining.")
        _check_topology(beat.topology)
    elif beat.member_epoch == LEAVING_FOR_A_WHILE:
        raise InvalidHeartbeat("InstanceId can't be null.")
    elif beat.member_epoch < LEAVING_FOR_A_WHILE:
        raise InvalidHeartbeat(
            f"MemberEpoch is {beat.member_epoch}, but must be greater than or equal to {LEAVING_FOR_A_WHILE}."
        )
    elif beat.topology is not None:
        raise InvalidHeartbeat("Topology can only be provided when (re-)joining.")
    if len({owned is None for owned in tasks}) > 1:
        raise InvalidHeartbeat("If one task-type is non-null, all must be non-null.")


def _check_features(beat: StreamsHeartbeat) -> None:
    if beat.instance_id is not None:
        raise InvalidHeartbeat("Static membership is not yet supported.")
    if beat.has_task_offsets:
        raise InvalidHeartbeat("TaskOffsets are not supported yet.")
    if beat.warmup:
        raise InvalidHeartbeat("WarmupTasks are not supported yet.")
    if beat.topology is not None and any(each.source_topic_regex for each in beat.topology.subtopologies):
        raise InvalidHeartbeat("Regular expressions for source topics are not supported yet.")


def _check_topology(topology: StreamsGroupTopologyValue) -> None:
    if topology.epoch < 0:
        raise InvalidTopology(f"a topology's epoch is {topology.epoch}; it starts at 0")
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise InvalidTopology(
                    f"changelog topic {topic.name} asks for {topic.partitions} partitions; it gets one for "
                    "each task"
                )
