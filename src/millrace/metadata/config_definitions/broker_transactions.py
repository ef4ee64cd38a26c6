"""The broker-level settings of transactions and of the topic that keeps their state."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import ConfigType, Importance, Range, Setting

_HIGH: Final = Importance.HIGH
_INT, _SHORT = ConfigType.INT, ConfigType.SHORT

TRANSACTION_SETTINGS: Final = (
    Setting(
        name="transaction.max.timeout.ms",
        type=_INT,
        default=900_000,
        doc="The longest time-out that a producer may ask for its transactions. For so long an abandoned "
        "transaction can hold up consumers that read committed records only.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="transactional.id.expiration.ms",
        type=_INT,
        default=604_800_000,
        doc="For how long a transactional id is remembered after its last transaction has ended.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
        type=_INT,
        default=3_600_000,
        doc="How often the broker looks for transactional ids that are too old.",
        valid=Range(1),
    ),
    Setting(
        name="transaction.state.log.num.partitions",
        type=_INT,
        default=50,
        doc="The number of partitions of __transaction_state. It counts when the topic is created, with the "
        "first transactional id; each transactional id lives in one of them.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="transaction.state.log.replication.factor",
        type=_SHORT,
        default=3,
        doc="The number of replicas of __transaction_state, or of brokers if there are fewer when it is "
        "created.",
        importance=_HIGH,
        valid=Range(1, 2**15 - 1),
    ),
    Setting(
        name="transaction.state.log.min.isr",
        type=_INT,
        default=2,
        doc="How many replicas of __transaction_state must have a change before it counts; no more than "
        "there are.",
        importance=_HIGH,
        valid=Range(1),
    ),
    Setting(
        name="transaction.state.log.segment.bytes",
        type=_INT,
        default=104_857_600,
        doc="The size of a segment of __transaction_state. Small segments are compacted sooner, which keeps "
        "loading short.",
        importance=_HIGH,
        # The same bound as for segment.bytes of any topic: otherwise the topic could not be created.
        valid=Range(1_048_576),
    ),
)
