"""The settings of groups of the streams protocol (KIP-1071): those of a broker, and those of one group."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.bounded import like_broker, with_bounds
from millrace.metadata.config_definitions.model import INT_MAX, ConfigType, Range, Setting, UpdateMode

_STREAMS: Final = "streams"

STREAMS_GROUP_SETTINGS: Final = (
    *with_bounds(
        _STREAMS,
        "session.timeout.ms",
        "After how long without a heartbeat a member of a streams group is taken for dead and its tasks "
        "go to others.",
        45_000,
        45_000,
        60_000,
        Range(1),
    ),
    *with_bounds(
        _STREAMS,
        "heartbeat.interval.ms",
        "How often members of streams groups send heartbeats. Changes of the assignment travel with them.",
        5_000,
        5_000,
        15_000,
        Range(1),
    ),
    *with_bounds(
        _STREAMS,
        "assignment.interval.ms",
        "The least time between two assignments of one streams group. Many members that join at once cost "
        "few assignments.",
        1_000,
        0,
        15_000,
        Range(0),
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="group.streams.initial.rebalance.delay.ms",
        type=ConfigType.INT,
        default=3_000,
        doc="How long a streams group that was empty waits for more members before its first assignment.",
        valid=Range(0),
    ),
    Setting(
        name="group.streams.max.size",
        type=ConfigType.INT,
        default=INT_MAX,
        doc="How many members a streams group may have.",
        valid=Range(1),
    ),
    Setting(
        name="group.streams.num.standby.replicas",
        type=ConfigType.INT,
        default=0,
        doc="How many standby copies each task with state has in a streams group.",
        valid=Range(0),
    ),
    Setting(
        name="group.streams.max.standby.replicas",
        type=ConfigType.INT,
        default=2,
        doc="The most that a group may be given as streams.num.standby.replicas.",
        valid=Range(0),
    ),
)

STREAMS_OWN_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        like_broker(
            _STREAMS,
            "session.timeout.ms",
            "After how long without a heartbeat a member of this streams group is taken for dead.",
            45_000,
            Range(1),
        ),
        like_broker(
            _STREAMS,
            "heartbeat.interval.ms",
            "How often the members of this streams group send heartbeats.",
            5_000,
            Range(1),
        ),
        like_broker(
            _STREAMS,
            "num.standby.replicas",
            "How many standby copies each task with state of this group has.",
            0,
            Range(0),
        ),
        like_broker(
            _STREAMS,
            "initial.rebalance.delay.ms",
            "How long this group waits for more members before its first assignment.",
            3_000,
            Range(0),
        ),
        like_broker(
            _STREAMS,
            "assignment.interval.ms",
            "The least time between two assignments of this streams group.",
            1_000,
            Range(0),
        ),
    )
}
"""What can be set for one streams group, whether it exists yet or not."""
