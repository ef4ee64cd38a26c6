"""The broker-level settings of replication: how followers fetch, and when they count as in sync."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    LONG_MAX,
    ConfigType,
    Importance,
    OneOf,
    Range,
    Setting,
    UpdateMode,
)

_HIGH: Final = Importance.HIGH
_INT, _LONG, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.STRING

_THROTTLES: Final = (
    Setting(
        name="leader.replication.throttled.rate",
        type=_LONG,
        default=LONG_MAX,
        doc="How many bytes a second this broker sends, as a leader, to followers that are not in sync, for "
        "the partitions in leader.replication.throttled.replicas. Followers in sync are never held back, and "
        "what they fetch does not count.",
        valid=Range(1),
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="follower.replication.throttled.rate",
        type=_LONG,
        default=LONG_MAX,
        doc="How many bytes a second this broker fetches, as a follower that is not in sync, for the "
        "partitions in follower.replication.throttled.replicas.",
        valid=Range(1),
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="replica.alter.log.dirs.io.max.bytes.per.second",
        type=_LONG,
        default=LONG_MAX,
        doc="How many bytes a second this broker copies when replicas move from one of its data directories "
        "to another.",
        valid=Range(1),
        update=UpdateMode.CLUSTER_WIDE,
    ),
)

REPLICATION_SETTINGS: Final = _THROTTLES + (
    Setting(
        name="inter.broker.listener.name",
        type=_STRING,
        default=None,
        doc="The listener that brokers use among themselves. Without it, they use each broker's first one.",
    ),
    Setting(
        name="replica.lag.time.max.ms",
        type=_LONG,
        default=30_000,
        doc="A follower that has not had all records of its leader for so long is not in sync any more, and "
        "nobody waits for it.",
        importance=_HIGH,
        valid=Range(100),
    ),
    Setting(
        name="replica.fetch.wait.max.ms",
        type=_INT,
        default=500,
        doc="How long a follower's fetch waits at the leader for records. It is answered at once when there "
        "are some.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="replica.fetch.min.bytes",
        type=_INT,
        default=1,
        doc="How many bytes a follower's fetch waits for. Leaders answer followers as soon as there is "
        "anything, so only 1 makes sense.",
        importance=_HIGH,
        valid=Range(0),
    ),
    Setting(
        name="replica.fetch.max.bytes",
        type=_INT,
        default=1_048_576,
        doc="How many bytes of one partition a follower fetches at a time. A larger batch is fetched whole.",
        valid=Range(0),
    ),
    Setting(
        name="replica.fetch.response.max.bytes",
        type=_INT,
        default=10_485_760,
        doc="How many bytes of all partitions a follower fetches at a time.",
        valid=Range(0),
    ),
    Setting(
        name="replica.selector.class",
        type=_STRING,
        default=None,
        doc="With org.apache.kafka.common.replica.RackAwareReplicaSelector, leaders send consumers that name "
        "their rack to a replica in it, if one is in sync.",
        valid=OneOf(("org.apache.kafka.common.replica.RackAwareReplicaSelector",)),
    ),
    Setting(
        name="replica.socket.timeout.ms",
        type=_INT,
        default=30_000,
        doc="After so long without an answer to a fetch, a follower connects anew to the leader.",
        importance=_HIGH,
        valid=Range(1),
    ),
)
