"""The broker-level settings of consumer groups and of the topic that keeps their offsets."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import INT_MAX, ConfigType, Importance, Range, Setting

_HIGH: Final = Importance.HIGH
_INT, _LONG, _SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT

_CLASSIC: Final = (
    Setting(
        name="group.min.session.timeout.ms",
        type=_INT,
        default=6_000,
        doc="The shortest session time-out that a member of a classic group may ask for. Short ones find "
        "dead members sooner, and cost more heartbeats.",
        valid=Range(0),
    ),
    Setting(
        name="group.max.session.timeout.ms",
        type=_INT,
        default=1_800_000,
        doc="The longest session time-out that a member of a classic group may ask for.",
        valid=Range(0),
    ),
    Setting(
        name="group.initial.rebalance.delay.ms",
        type=_INT,
        default=3_000,
        doc="How long a classic group that was empty waits for more members before its first rebalance. It "
        "spares a starting application a rebalance for each of its members.",
        valid=Range(0),
    ),
    Setting(
        name="group.max.size",
        type=_INT,
        default=INT_MAX,
        doc="How many members a classic group may have.",
        valid=Range(1),
    ),
)

_OFFSETS: Final = (
    Setting(
        name="offset.metadata.max.bytes",
        type=_INT,
        default=4_096,
        doc="How long the text may be that a consumer stores beside an offset.",
        importance=_HIGH,
        valid=Range(0),
    ),
    Setting(
        name="offsets.retention.minutes",
        type=_INT,
        default=10_080,
        doc="For how long offsets are kept after their group has become empty, or after the commit where a "
        "consumer does without a group. A topic that a group is subscribed to keeps its offsets.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="offsets.retention.check.interval.ms",
        type=_LONG,
        default=600_000,
        doc="How often the broker looks for offsets that are too old.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="offsets.topic.num.partitions",
        type=_INT,
        default=50,
        doc="The number of partitions of __consumer_offsets. It counts when the topic is created, with the "
        "first group; each group lives in one of them.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="offsets.topic.replication.factor",
        type=_SHORT,
        default=3,
        doc="The number of replicas of __consumer_offsets, or of brokers if there are fewer when it is "
        "created.",
        importance=_HIGH,
        valid=Range(1, 2**15 - 1),
    ),
    Setting(
        name="offsets.topic.segment.bytes",
        type=_INT,
        default=104_857_600,
        doc="The size of a segment of __consumer_offsets. Small segments are compacted sooner, which keeps "
        "loading short.",
        importance=_HIGH,
        # The same bound as for segment.bytes of any topic: otherwise the topic could not be created.
        valid=Range(1_048_576),
    ),
)

GROUP_SETTINGS: Final = _CLASSIC + _OFFSETS
