"""The broker-level settings that concern the logs; most are the defaults of a topic setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from millrace.metadata.config_definitions.model import (
    ConfigType,
    Importance,
    Range,
    Setting,
    Synonym,
    UpdateMode,
    Value,
)
from millrace.metadata.config_definitions.topic import (
    FLUSH_SYNONYMS,
    JITTER_SYNONYMS,
    OWN_TOPIC_SETTINGS,
    RETENTION_SYNONYMS,
    ROLL_SYNONYMS,
)

_HIGH: Final = Importance.HIGH
_LOW: Final = Importance.LOW
_DYNAMIC: Final = UpdateMode.CLUSTER_WIDE


def _default_of(topic_name: str, *, importance: Importance = Importance.MEDIUM) -> Setting:
    """The broker setting that gives a topic setting its default, same type, range and default."""
    topic = OWN_TOPIC_SETTINGS[topic_name]
    (synonym,) = topic.synonyms
    doc = f"The default of {topic_name} for topics that do not set it. " + topic.doc
    return replace(topic, name=synonym.name, doc=doc, synonyms=(), importance=importance, update=_DYNAMIC)


def _stage(
    name: str, type_: ConfigType, chain: tuple[Synonym, ...], default: Value, doc: str, valid: Range
) -> Setting:
    """One of several broker settings that say the same in different units."""
    first = chain[0].name
    return Setting(
        name=name,
        type=type_,
        default=default,
        doc=doc,
        valid=valid,
        importance=_HIGH,
        update=_DYNAMIC if name == first else UpdateMode.READ_ONLY,
        synonyms=chain,
    )


_INT, _LONG = ConfigType.INT, ConfigType.LONG

_DEFAULTS_OF_TOPICS: Final = (
    _default_of("batch.validation"),
    _default_of("cleanup.policy"),
    _default_of("compression.gzip.level"),
    _default_of("compression.lz4.level"),
    _default_of("compression.type", importance=_HIGH),
    _default_of("compression.zstd.level"),
    _default_of("delete.retention.ms"),
    _default_of("file.delete.delay.ms", importance=_HIGH),
    _default_of("flush.messages", importance=_HIGH),
    _default_of("index.interval.bytes"),
    _default_of("max.compaction.lag.ms"),
    _default_of("max.decompressed.message.bytes"),
    _default_of("max.message.bytes", importance=_HIGH),
    _default_of("message.timestamp.after.max.ms"),
    _default_of("message.timestamp.before.max.ms"),
    _default_of("message.timestamp.type"),
    _default_of("min.cleanable.dirty.ratio"),
    _default_of("min.compaction.lag.ms"),
    _default_of("min.insync.replicas", importance=_HIGH),
    _default_of("preallocate"),
    _default_of("retention.bytes", importance=_HIGH),
    _default_of("segment.bytes", importance=_HIGH),
    _default_of("segment.index.bytes"),
    _default_of("unclean.leader.election.enable", importance=_HIGH),
)

_STAGES: Final = (
    _stage(
        "log.retention.ms",
        _LONG,
        RETENTION_SYNONYMS,
        None,
        "The default of retention.ms. Stronger than log.retention.minutes and log.retention.hours.",
        Range(-1),
    ),
    _stage(
        "log.retention.minutes",
        _INT,
        RETENTION_SYNONYMS,
        None,
        "The default of retention.ms in minutes, when log.retention.ms is not set.",
        Range(-1),
    ),
    _stage(
        "log.retention.hours",
        _INT,
        RETENTION_SYNONYMS,
        168,
        "The default of retention.ms in hours, when neither log.retention.ms nor log.retention.minutes is "
        "set.",
        Range(-1),
    ),
    _stage(
        "log.roll.ms",
        _LONG,
        ROLL_SYNONYMS,
        None,
        "The default of segment.ms. Stronger than log.roll.hours.",
        Range(1),
    ),
    _stage(
        "log.roll.hours",
        _INT,
        ROLL_SYNONYMS,
        168,
        "The default of segment.ms in hours, when log.roll.ms is not set.",
        Range(1),
    ),
    _stage(
        "log.roll.jitter.ms",
        _LONG,
        JITTER_SYNONYMS,
        None,
        "The default of segment.jitter.ms. Stronger than log.roll.jitter.hours.",
        Range(0),
    ),
    _stage(
        "log.roll.jitter.hours",
        _INT,
        JITTER_SYNONYMS,
        0,
        "The default of segment.jitter.ms in hours, when log.roll.jitter.ms is not set.",
        Range(0),
    ),
    _stage(
        "log.flush.interval.ms",
        _LONG,
        FLUSH_SYNONYMS,
        None,
        "The default of flush.ms. Without it log.flush.scheduler.interval.ms counts.",
        Range(0),
    ),
    replace(
        _stage(
            "log.flush.scheduler.interval.ms",
            _LONG,
            FLUSH_SYNONYMS,
            1_000,
            "How often the background flush looks for partitions with data that is not yet on disk.",
            Range(1),
        ),
        deviates=OWN_TOPIC_SETTINGS["flush.ms"].deviates,
    ),
)

_OF_THE_BROKER: Final = (
    Setting(
        name="log.dirs",
        type=ConfigType.LIST,
        default=("millrace-data",),
        doc="The data directories, one for each disk. A new partition goes to the one with the fewest; "
        "AlterReplicaLogDirs moves it to another. The metadata of a sole broker is kept in the first. A "
        "directory that fails takes only its own partitions offline.",
        importance=_HIGH,
        deviates="Kafka's default lies under /tmp, where systems delete old files",
    ),
    Setting(
        name="log.dir",
        type=ConfigType.STRING,
        default=None,
        doc="A single data directory; only looked at when log.dirs is not set.",
        importance=_HIGH,
    ),
    Setting(
        name="log.open.files.max",
        type=_INT,
        default=-1,
        doc="How many segment and index files may be open at once; the ones used longest ago are closed. -1 "
        "takes half of what the operating system allows the process.",
        valid=Range(16, also=(-1,)),
    ),
    Setting(
        name="log.retention.check.interval.ms",
        type=_LONG,
        default=300_000,
        doc="How often the broker looks for segments past their retention.",
        valid=Range(1),
    ),
    Setting(
        name="log.initial.task.delay.ms",
        type=_LONG,
        default=30_000,
        doc="How long after the start the background work on logs begins.",
        valid=Range(0),
        importance=_LOW,
    ),
    Setting(
        name="log.flush.offset.checkpoint.interval.ms",
        type=_INT,
        default=60_000,
        doc="How often the recovery points are written, from which a start after a crash checks the logs.",
        valid=Range(0),
        importance=_HIGH,
    ),
    Setting(
        name="replica.high.watermark.checkpoint.interval.ms",
        type=_LONG,
        default=5_000,
        doc="How often the high watermarks are written down.",
        valid=Range(1),
        importance=_HIGH,
    ),
    Setting(
        name="replica.follower.cached.bytes",
        type=_LONG,
        default=1024 * 1024,
        doc=(
            "How much of the end of each log that this broker only follows stays in the system's page cache "
            "after a flush. The rest is read from the disk should the broker lead one day, and until then "
            "leaves the memory to logs that are read. A log that consumers read here, because of their rack, "
            "is not limited. -1 leaves it all to the system."
        ),
        valid=Range(-1),
    ),
    Setting(
        name="num.recovery.threads.per.data.dir",
        type=_INT,
        default=2,
        doc="How many logs are checked at the same time at a start after a crash.",
        valid=Range(1),
        importance=_HIGH,
    ),
    Setting(
        name="log.cleaner.enable",
        type=ConfigType.BOOLEAN,
        default=True,
        doc="Whether logs with cleanup.policy=compact are compacted at all.",
    ),
    Setting(
        name="log.cleaner.backoff.ms",
        type=_LONG,
        default=15_000,
        doc="How long the cleaner waits when no log needs compaction.",
        valid=Range(0),
        update=_DYNAMIC,
    ),
    Setting(
        name="log.cleaner.dedupe.buffer.size",
        type=_LONG,
        default=134_217_728,
        doc="The memory for the map of latest offsets by key in one pass of compaction; more keys take more "
        "passes.",
        valid=Range(1_048_576),
        update=_DYNAMIC,
    ),
    Setting(
        name="log.cleaner.io.buffer.size",
        type=_INT,
        default=524_288,
        doc="How many bytes the cleaner reads and writes at a time; it grows when a batch is larger.",
        valid=Range(1),
        update=_DYNAMIC,
    ),
    Setting(
        name="log.cleaner.io.max.bytes.per.second",
        type=ConfigType.DOUBLE,
        default=1.7976931348623157e308,
        doc="The most bytes that compaction reads and writes in a second.",
        valid=Range(1),
        update=_DYNAMIC,
    ),
    Setting(
        name="log.scrub.io.max.bytes.per.second",
        type=_INT,
        default=8_388_608,
        doc="How many bytes of stored records the broker reads again in a second, in the background, to find "
        "what its disks have damaged. Damaged records go into quarantine and come back from a replica in "
        "sync. 0 means no scrub.",
        valid=Range(0),
        update=_DYNAMIC,
    ),
    Setting(
        name="log.scrub.interval.ms",
        type=_LONG,
        default=604_800_000,
        doc="How long after its last scrub a log is due again. After a restart the scrub goes on with the "
        "log that has waited longest.",
        valid=Range(1_000),
        update=_DYNAMIC,
    ),
    Setting(
        name="producer.id.expiration.ms",
        type=_INT,
        default=86_400_000,
        doc="How long a partition remembers a producer that sends nothing more, to recognise its repeated "
        "batches.",
        valid=Range(1),
        importance=_LOW,
        update=_DYNAMIC,
    ),
)

LOG_SETTINGS: Final = _DEFAULTS_OF_TOPICS + _STAGES + _OF_THE_BROKER
