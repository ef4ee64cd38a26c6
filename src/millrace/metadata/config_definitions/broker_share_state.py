"""The broker-level settings of the coordinator of share state, and of the topic that keeps that state."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import ConfigType, Importance, Range, Setting

_HIGH: Final = Importance.HIGH
_INT, _SHORT = ConfigType.INT, ConfigType.SHORT

SHARE_STATE_SETTINGS: Final = (
    Setting(
        name="share.coordinator.state.topic.num.partitions",
        type=_INT,
        default=50,
        doc="The number of partitions of __share_group_state. It counts when the topic is created, with the "
        "first share group; the state of each share partition lives in one of them.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="share.coordinator.state.topic.replication.factor",
        type=_SHORT,
        default=3,
        doc="The number of replicas of __share_group_state, or of brokers if there are fewer when it is "
        "created.",
        importance=_HIGH,
        valid=Range(1, 2**15 - 1),
    ),
    Setting(
        name="share.coordinator.state.topic.min.isr",
        type=_SHORT,
        default=2,
        doc="How many replicas of __share_group_state must have a change before it counts; no more than "
        "there are.",
        importance=_HIGH,
        valid=Range(1, 2**15 - 1),
    ),
    Setting(
        name="share.coordinator.state.topic.segment.bytes",
        type=_INT,
        default=104_857_600,
        doc="The size of the segments of __share_group_state. It counts when the topic is created.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="share.coordinator.state.topic.prune.interval.ms",
        type=_INT,
        default=300_000,
        doc="How often the broker deletes records of __share_group_state that no share partition needs any "
        "more.",
        importance=Importance.LOW,
        valid=Range(1),
    ),
    Setting(
        name="share.coordinator.cold.partition.snapshot.interval.ms",
        type=_INT,
        default=300_000,
        doc="How old the state of a share partition that nobody uses may get before it is written anew, so "
        "that the records before it can be deleted. This is done only where the topic has grown.",
        importance=Importance.LOW,
        valid=Range(1),
    ),
    Setting(
        name="share.coordinator.snapshot.update.records.per.snapshot",
        type=_INT,
        default=500,
        doc="How many changes of a share partition's state are written before all of it is written again.",
        valid=Range(0, 500),
    ),
    Setting(
        name="share.coordinator.write.timeout.ms",
        type=_INT,
        default=5_000,
        doc="For how long the leader of a share partition waits until a change of its state is committed, "
        "and tries again if the coordinator of that state moves.",
        importance=_HIGH,
        valid=Range(1),
    ),
)
