"""The topic-level settings. The log, the replica and the handlers get them resolved, never from here."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    LONG_MAX,
    ConfigType,
    ListOf,
    OneOf,
    Range,
    Setting,
    Synonym,
    UpdateMode,
)
from millrace.metadata.config_definitions.throttled_replicas import THROTTLED_REPLICAS

_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000
_ANY_TIME: Final = Range(0)

RETENTION_SYNONYMS: Final = (
    Synonym("log.retention.ms"),
    Synonym("log.retention.minutes", _MINUTE_MS),
    Synonym("log.retention.hours", _HOUR_MS),
)
ROLL_SYNONYMS: Final = (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS))
JITTER_SYNONYMS: Final = (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS))
FLUSH_SYNONYMS: Final = (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms"))

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
BATCH_VALIDATIONS: Final = ("header", "deep")


def _topic(name: str, type_: ConfigType, default: object, doc: str, **more: object) -> Setting:
    # A topic's settings all take effect on running brokers.
    fields: dict[str, object] = {"update": UpdateMode.CLUSTER_WIDE, **more}
    return Setting(name=name, type=type_, default=default, doc=doc, **fields)  # type: ignore[arg-type]


_SETTINGS: Final = (
    _topic(
        "batch.validation",
        ConfigType.STRING,
        "header",
        "How much of a producer's batch is checked before it is stored: its header and checksum, or (deep) "
        "every record in it as well. Deep checks cost CPU time outside the event loop and are meant for "
        "producers that are not trusted.",
        valid=OneOf(BATCH_VALIDATIONS),
        synonyms=(Synonym("batch.validation"),),
    ),
    _topic(
        "cleanup.policy",
        ConfigType.LIST,
        ("delete",),
        "What happens to old data: delete drops segments past the retention limits, compact keeps the "
        "latest value of every key. Both may be given; an empty list keeps everything.",
        valid=ListOf(("compact", "delete")),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    _topic(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        "The gzip level when compression.type is gzip; -1 is the library's own choice.",
        valid=Range(1, 9, also=(-1,)),
        synonyms=(Synonym("compression.gzip.level"),),
    ),
    _topic(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        "The lz4 level when compression.type is lz4.",
        valid=Range(1, 17),
        synonyms=(Synonym("compression.lz4.level"),),
    ),
    _topic(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "The codec in which batches are stored. With producer they stay as they were sent; any other value "
        "makes the broker compress again what came in differently.",
        valid=OneOf(COMPRESSION_TYPES),
        synonyms=(Synonym("compression.type"),),
    ),
    _topic(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        "The zstd level when compression.type is zstd.",
        valid=Range(-131072, 22),
        synonyms=(Synonym("compression.zstd.level"),),
    ),
    _topic(
        "dedup.window.ms",
        ConfigType.LONG,
        0,
        "For how long the ids in header millrace-dedup-id are remembered in each partition: a record with an "
        "id that was stored within this time is not stored again, and its producer is told of success. 0 "
        "looks at no ids. Batches are looked into outside the event loop, which costs CPU time.",
        valid=Range(0, 31 * 24 * _HOUR_MS),
    ),
    _topic(
        "delayed.delivery.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether records with header millrace-deliver-at or millrace-delay-ms are kept until they are due. "
        "Batches are looked into outside the event loop, which costs CPU time.",
    ),
    _topic(
        "delayed.delivery.max.ms",
        ConfigType.LONG,
        365 * 24 * _HOUR_MS,
        "How far ahead a record may be scheduled in a topic with delayed.delivery.enable.",
        valid=_ANY_TIME,
    ),
    _topic(
        "delete.retention.ms",
        ConfigType.LONG,
        86_400_000,
        "How long the marker of a deleted key stays in a compacted topic, so that readers who lag still "
        "learn of the deletion.",
        valid=_ANY_TIME,
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    _topic(
        "errors.deadletterqueue.group.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether share groups may write dead letters to the topic.",
    ),
    _topic(
        "file.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        "How long the file of a dropped segment remains on disk, for reads that are still under way.",
        valid=_ANY_TIME,
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    _topic(
        "flush.messages",
        ConfigType.LONG,
        LONG_MAX,
        "After how many records a flush to disk is forced. 1 makes every acknowledged record durable: "
        "producers that wait at the same time share one flush.",
        valid=Range(1),
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    _topic(
        "flush.ms",
        ConfigType.LONG,
        1_000,
        "The longest time that appended data stays in memory only before the background flush writes it to "
        "disk.",
        valid=_ANY_TIME,
        synonyms=FLUSH_SYNONYMS,
        deviates="Kafka leaves flushing to the operating system; flushing every second keeps few dirty "
        "pages, so that an append never waits long for the kernel, and bounds what a power cut can take "
        "from one node",
    ),
    _topic(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        "The replicas that fetch at most follower.replication.throttled.rate while they are not in sync: * "
        "for all, or partition:broker for each. `millrace reassign execute --throttle` sets and removes it.",
        valid=THROTTLED_REPLICAS,
    ),
    _topic(
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        "How many bytes of log lie between two entries of the offset index.",
        valid=Range(0),
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    _topic(
        "internal.segment.bytes",
        ConfigType.INT,
        None,
        "Overrides segment.bytes without its lower limit.",
        valid=Range(1),
        internal=True,
    ),
    _topic(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        "The replicas that, when they lead, send at most leader.replication.throttled.rate to followers that "
        "are not in sync: * for all, or partition:broker for each.",
        valid=THROTTLED_REPLICAS,
    ),
    _topic(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        "The longest time a record of a compacted topic may wait before compaction must consider it.",
        valid=Range(1),
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    _topic(
        "max.decompressed.message.bytes",
        ConfigType.INT,
        104_857_600,
        "The most bytes that one batch may inflate to wherever the broker has to decompress it; a batch "
        "beyond that is refused.",
        valid=Range(1),
        synonyms=(Synonym("max.decompressed.message.bytes"),),
    ),
    _topic(
        "max.message.bytes",
        ConfigType.INT,
        1_048_588,
        "The size of the largest batch (after compression) that the topic accepts.",
        valid=Range(0),
        synonyms=(Synonym("message.max.bytes"),),
    ),
    _topic(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        _HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock.",
        valid=_ANY_TIME,
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    _topic(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        "How far a record's timestamp may lie behind the broker's clock.",
        valid=_ANY_TIME,
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    _topic(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whether records keep the producer's time or get the time of their arrival.",
        valid=OneOf(TIMESTAMP_TYPES),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        "The share of a compacted log that must be uncleaned before compaction starts on it.",
        valid=Range(0, 1),
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    _topic(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        "The shortest time a record stays as it was written before compaction may remove it.",
        valid=_ANY_TIME,
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    _topic(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        "How many replicas must be in sync for a write with acks=all to be accepted.",
        valid=Range(1),
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    _topic(
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        "Whether a new segment's file gets its full size at once.",
        synonyms=(Synonym("log.preallocate"),),
    ),
    _topic(
        "queue.priority",
        ConfigType.INT,
        0,
        "How urgent the records of this topic are to share consumers of several topics: those with higher "
        "numbers come first. Every eighth fetch begins with the lowest, so that none waits for ever.",
        valid=Range(0, 31),
    ),
    _topic(
        "retention.bytes",
        ConfigType.LONG,
        -1,
        "How large a partition may grow before its oldest segments are dropped; -1 means without limit.",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    _topic(
        "retention.ms",
        ConfigType.LONG,
        168 * _HOUR_MS,
        "How long records are kept before their segment is dropped; -1 means for ever.",
        valid=Range(-1),
        synonyms=RETENTION_SYNONYMS,
    ),
    _topic(
        "segment.bytes",
        ConfigType.INT,
        1_073_741_824,
        "The size at which a partition's log goes on in a new segment file.",
        valid=Range(1_048_576),
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    _topic(
        "segment.index.bytes",
        ConfigType.INT,
        10_485_760,
        "The size that a segment's index files may reach; a full index starts a new segment.",
        valid=Range(4),
        synonyms=(Synonym("log.index.size.max.bytes"),),
    ),
    _topic(
        "segment.jitter.ms",
        ConfigType.LONG,
        0,
        "At most how much earlier than segment.ms a segment may be closed, chosen at random so that not all "
        "partitions do it at once.",
        valid=_ANY_TIME,
        synonyms=JITTER_SYNONYMS,
    ),
    _topic(
        "segment.ms",
        ConfigType.LONG,
        168 * _HOUR_MS,
        "The age at which a segment is closed even if it is not full, so that retention can act on it.",
        valid=Range(1),
        synonyms=ROLL_SYNONYMS,
    ),
    _topic(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader when no other is left. It loses "
        "acknowledged records.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)

OWN_TOPIC_SETTINGS: Final[dict[str, Setting]] = {setting.name: setting for setting in _SETTINGS}
