"""The settings of share groups: those of a broker, with what groups may choose, and those of one group."""

from __future__ import annotations

from typing import Final

from millrace.core.durations import iso_duration_ms
from millrace.metadata.config_definitions.bounded import like_broker, with_bounds
from millrace.metadata.config_definitions.model import (
    LONG_MAX,
    Check,
    ConfigType,
    ListOf,
    OneOf,
    Range,
    Setting,
    UpdateMode,
    Value,
)

_INT: Final = ConfigType.INT
_LONG: Final = ConfigType.LONG
_LOCK_MS_MIN: Final = 1_000
_LOCK_MS_MAX: Final = 12 * 3_600_000
_DELIVERIES_MAX: Final = 1_000
_WIDER: Final = "a queue may need longer or shorter than Kafka allows, and nothing here depends on its bounds"
DURATION_PREFIX: Final = "by_duration:"
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")


def _is_start(value: Value) -> bool:
    assert isinstance(value, str), value
    if value in ("latest", "earliest"):
        return True
    try:
        return value.startswith(DURATION_PREFIX) and iso_duration_ms(value.removeprefix(DURATION_PREFIX)) >= 0
    except ValueError:
        return False


def _is_dead_letter_topic(value: Value) -> bool:
    assert isinstance(value, str), value
    return not value.startswith("__")


SHARE_GROUP_SETTINGS: Final = (
    *with_bounds(
        "share",
        "record.lock.duration.ms",
        "How long a member of a share group has for a record before the record goes to another one.",
        30_000,
        _LOCK_MS_MIN,
        _LOCK_MS_MAX,
        Range(_LOCK_MS_MIN, _LOCK_MS_MAX),
        deviates=_WIDER,
    ),
    *with_bounds(
        "share",
        "delivery.count.limit",
        "How often a record is delivered to a share group before it is given up.",
        5,
        1,
        _DELIVERIES_MAX,
        Range(1, _DELIVERIES_MAX),
        deviates=_WIDER,
    ),
    *with_bounds(
        "share",
        "partition.max.record.locks",
        "How many records of one partition the members of a share group may hold at once, all together.",
        2_000,
        100,
        4_000,
        Range(100, 10_000),
    ),
    *with_bounds(
        "share",
        "heartbeat.interval.ms",
        "How often members of share groups send heartbeats. Changes of the assignment travel with them.",
        5_000,
        5_000,
        15_000,
        Range(1),
    ),
    *with_bounds(
        "share",
        "session.timeout.ms",
        "After how long without a heartbeat a member of a share group is taken for dead.",
        45_000,
        45_000,
        60_000,
        Range(1),
    ),
    *with_bounds(
        "share",
        "assignment.interval.ms",
        "The least time between two assignments of one share group. Many members that join at once cost "
        "few assignments.",
        1_000,
        0,
        15_000,
        Range(0),
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="group.share.assignors",
        type=ConfigType.LIST,
        default=("simple",),
        doc="The assignors of share groups; there is one.",
        valid=ListOf(("simple",)),
    ),
    Setting(
        name="group.share.max.size",
        type=_INT,
        default=200,
        doc="How many members a share group may have.",
        valid=Range(1, 1_000),
    ),
    Setting(
        name="group.share.max.share.sessions",
        type=_INT,
        default=2_000,
        doc="How many members of share groups may fetch from one broker at the same time.",
        valid=Range(1),
    ),
    Setting(
        name="errors.deadletterqueue.topic.name.prefix",
        type=ConfigType.STRING,
        default="dlq.",
        doc="How the names of topics begin that share groups write dead letters to; empty for any name.",
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="errors.deadletterqueue.auto.create.topics.enable",
        type=ConfigType.BOOLEAN,
        default=False,
        doc="Whether a dead-letter topic that is missing is created, with "
        "errors.deadletterqueue.group.enable.",
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="group.share.initialize.retry.interval.ms",
        type=_INT,
        default=30_000,
        doc="After how long a share group that could not prepare the state of a partition tries again.",
        valid=Range(1),
    ),
)

_OF_KAFKA: Final = (
    like_broker(
        "share",
        "record.lock.duration.ms",
        "How long a member has for a record before the record goes to another one.",
        30_000,
        Range(_LOCK_MS_MIN, _LOCK_MS_MAX),
    ),
    like_broker(
        "share",
        "delivery.count.limit",
        "How often a record is delivered before it is given up.",
        5,
        Range(1, _DELIVERIES_MAX),
    ),
    like_broker(
        "share",
        "partition.max.record.locks",
        "How many records of one partition all members together may hold at once.",
        2_000,
        Range(100, 10_000),
    ),
    like_broker(
        "share",
        "heartbeat.interval.ms",
        "How often the members of this share group send heartbeats.",
        5_000,
        Range(1),
    ),
    like_broker(
        "share",
        "session.timeout.ms",
        "After how long without a heartbeat a member of this share group is taken for dead.",
        45_000,
        Range(1),
    ),
    like_broker(
        "share",
        "assignment.interval.ms",
        "The least time between two assignments of this share group.",
        1_000,
        Range(0),
    ),
    Setting(
        name="share.auto.offset.reset",
        type=ConfigType.STRING,
        default="latest",
        doc="Where the group begins in a partition that it has not read yet.",
        valid=Check(_is_start, "latest, earliest, or by_duration: and a duration, as in by_duration:PT1H"),
    ),
    Setting(
        name="share.isolation.level",
        type=ConfigType.STRING,
        default="read_uncommitted",
        doc="Whether members get the records of transactions that are open or were aborted.",
        valid=OneOf(ISOLATION_LEVELS),
    ),
    Setting(
        name="share.renew.acknowledge.enable",
        type=ConfigType.BOOLEAN,
        default=True,
        doc="Whether members may ask for more time for a record.",
    ),
)

_DEAD_LETTERS: Final = (
    Setting(
        name="errors.deadletterqueue.topic.name",
        type=ConfigType.STRING,
        default="",
        doc="The topic that gets the records which are given up: rejected ones, and those at the delivery "
        "limit. Empty for none.",
        valid=Check(_is_dead_letter_topic, "a topic whose name does not begin with __, or nothing"),
    ),
    Setting(
        name="errors.deadletterqueue.copy.record.enable",
        type=ConfigType.BOOLEAN,
        default=True,
        doc="Whether a dead letter has the key, the value and the headers of its record, or only says where "
        "the record is.",
        deviates="a dead letter without its content is lost when its topic's retention passes",
    ),
)

_OF_QUEUES: Final = (
    Setting(
        name="share.retry.backoff.ms",
        type=_LONG,
        default=0,
        doc="How long a record waits before its second delivery; each later one waits twice as long. 0 for "
        "not at all.",
        valid=Range(0, LONG_MAX),
    ),
    Setting(
        name="share.retry.backoff.max.ms",
        type=_LONG,
        default=300_000,
        doc="How long a record waits for its next delivery at most.",
        valid=Range(0, LONG_MAX),
    ),
    Setting(
        name="share.member.max.record.locks",
        type=_INT,
        default=0,
        doc="How many records of one partition one member may hold at once. 0 for no limit of its own.",
        valid=Range(0),
    ),
    Setting(
        name="share.order",
        type=ConfigType.STRING,
        default="none",
        doc="With key, a record is delivered only when those with the same key before it are done.",
        valid=OneOf(("none", "key")),
    ),
    Setting(
        name="share.record.max.age.ms",
        type=_LONG,
        default=0,
        doc="Records older than this are given up instead of delivered. 0 for no limit.",
        valid=Range(0, LONG_MAX),
    ),
    Setting(
        name="share.count.failures.only",
        type=ConfigType.BOOLEAN,
        default=False,
        doc="Whether a delivery that its member gives back by releasing the record does not count.",
    ),
    Setting(
        name="share.delivery.pause",
        type=ConfigType.BOOLEAN,
        default=False,
        doc="Whether the group gets no more records for the time being.",
    ),
    Setting(
        name="share.dlq.breaker.ratio",
        type=ConfigType.DOUBLE,
        default=0.0,
        doc="Delivery pauses when more than this part of the deliveries that ended were given up. 0 for "
        "never.",
        valid=Range(0, 1),
    ),
    Setting(
        name="share.dlq.breaker.window.ms",
        type=_LONG,
        default=60_000,
        doc="Over which time share.dlq.breaker.ratio is measured.",
        valid=Range(1_000, 24 * 3_600_000),
    ),
)

SHARE_OWN_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting for setting in (*_OF_KAFKA, *_DEAD_LETTERS, *_OF_QUEUES)
}
"""What can be set for one share group, whether it exists yet or not."""
