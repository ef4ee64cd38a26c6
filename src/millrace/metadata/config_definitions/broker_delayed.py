"""The broker-level settings of delayed messages and of the topic in which they wait."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import ConfigType, Range, Setting, UpdateMode

_INT, _SHORT = ConfigType.INT, ConfigType.SHORT

DELAYED_SETTINGS: Final = (
    Setting(
        name="delayed.delivery.max.rate",
        type=_INT,
        default=20_000,
        doc="How many delayed messages a second each partition of __delayed_messages delivers at most. It "
        "bounds what a broker that was away puts into topics at once: the oldest come first.",
        valid=Range(1),
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="delayed.messages.topic.num.partitions",
        type=_INT,
        default=12,
        doc="The number of partitions of __delayed_messages. It counts when the topic is created, with the "
        "first delayed message; the messages for a partition of any topic wait in one of them.",
        valid=Range(1),
    ),
    Setting(
        name="delayed.messages.topic.replication.factor",
        type=_SHORT,
        default=3,
        doc="The number of replicas of __delayed_messages, or of brokers if there are fewer when it is "
        "created.",
        valid=Range(1, 2**15 - 1),
    ),
    Setting(
        name="delayed.messages.topic.min.isr",
        type=_INT,
        default=2,
        doc="How many replicas of __delayed_messages must have a message before its producer is answered; "
        "no more than there are.",
        valid=Range(1),
    ),
    Setting(
        name="delayed.messages.topic.segment.bytes",
        type=_INT,
        default=104_857_600,
        doc="The size of a segment of __delayed_messages, which is also the largest message that can be "
        "delayed.",
        # The same bound as for segment.bytes of any topic: otherwise the topic could not be created.
        valid=Range(1_048_576),
    ),
)
