"""The broker-level settings of groups of the consumer protocol (KIP-848), and those of single groups."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    INT_MAX,
    Check,
    ConfigType,
    OneOf,
    Range,
    Setting,
    Synonym,
    Value,
)

_INT: Final = ConfigType.INT
ASSIGNOR_NAMES: Final = ("uniform", "range")


def _are_assignors(value: Value) -> bool:
    assert isinstance(value, tuple), value
    return bool(value) and set(value) <= set(ASSIGNOR_NAMES) and len(set(value)) == len(value)


CONSUMER_GROUP_SETTINGS: Final = (
    Setting(
        name="group.consumer.session.timeout.ms",
        type=_INT,
        default=45_000,
        doc="After how long without a heartbeat a member of a consumer group is taken for dead and its "
        "partitions go to others.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.min.session.timeout.ms",
        type=_INT,
        default=45_000,
        doc="The shortest session time-out that a group may be given.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.max.session.timeout.ms",
        type=_INT,
        default=60_000,
        doc="The longest session time-out that a group may be given.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.heartbeat.interval.ms",
        type=_INT,
        default=5_000,
        doc="How often members of consumer groups send heartbeats. Changes of the assignment travel with "
        "them, so shorter ones move partitions sooner and cost more requests.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.min.heartbeat.interval.ms",
        type=_INT,
        default=5_000,
        doc="The shortest interval between heartbeats that a group may be given.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.max.heartbeat.interval.ms",
        type=_INT,
        default=15_000,
        doc="The longest interval between heartbeats that a group may be given.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.max.size",
        type=_INT,
        default=INT_MAX,
        doc="How many members a consumer group may have.",
        valid=Range(1),
    ),
    Setting(
        name="group.consumer.assignors",
        type=ConfigType.LIST,
        default=ASSIGNOR_NAMES,
        doc="The assignors that members of consumer groups may ask for; the first serves groups without a "
        "wish.",
        valid=Check(_are_assignors, "a list of uniform and range, each at most once"),
    ),
    Setting(
        name="group.consumer.migration.policy",
        type=ConfigType.STRING,
        default="bidirectional",
        doc="Whether a group with members may change its protocol: to the consumer protocol when the first "
        "such member joins (upgrade), back when the last one leaves (downgrade), both, or neither.",
        valid=OneOf(("bidirectional", "upgrade", "downgrade", "disabled")),
    ),
    Setting(
        name="group.consumer.assignment.interval.ms",
        type=_INT,
        default=1_000,
        doc="The least time between two assignments of one consumer group. Many members that join at once "
        "cost few assignments.",
        valid=Range(0),
    ),
)

CONSUMER_OWN_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting(
            name="consumer.heartbeat.interval.ms",
            type=_INT,
            default=5_000,
            doc="How often the members of this consumer group send heartbeats.",
            valid=Range(1),
            synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        ),
        Setting(
            name="consumer.session.timeout.ms",
            type=_INT,
            default=45_000,
            doc="After how long without a heartbeat a member of this consumer group is taken for dead.",
            valid=Range(1),
            synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        ),
    )
}
"""What can be set for one consumer group, whether it exists yet or not."""
