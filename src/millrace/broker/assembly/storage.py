"""The data directories with their logs, and the partitions that this broker has of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.broker.assembly import part_settings
from millrace.broker.assembly.ground import Ground
from millrace.broker.config.config import BrokerConfig
from millrace.broker.replication.local_replicas import LocalReplicas, Roles
from millrace.broker.upkeep import Flusher
from millrace.core.ids import NO_EPOCH, Epoch, TopicPartition
from millrace.log.config import LogConfig
from millrace.log.directories.log_directories import LogDirectories
from millrace.log.directories.survey import LoadProgress
from millrace.log.errors import LogDirectoryOffline
from millrace.metadata.adoption import FoundLog, belongs_to
from millrace.metadata.config_definitions import topic_settings
from millrace.metadata.errors import InvalidConfig
from millrace.metadata.reconciler import Reconciler
from millrace.metadata.service import Metadata
from millrace.replica.partitions import Partitions

log = logging.getLogger(__name__)

LOGS_BETWEEN_NEWS = 100
"""After an unclean stop the broker says how far its check has come each time so many more logs are done."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The data directories, the partitions in them, and what flushes them for acknowledgements."""

    directories: LogDirectories
    partitions: Partitions = field(default_factory=Partitions)
    flusher: Flusher = field(default_factory=Flusher)


def build_storage(ground: Ground) -> Storage:
    surroundings, config = ground.surroundings, ground.config
    directories = LogDirectories(
        surroundings.volume,
        config.now.log_dirs,
        clock=surroundings.clock,
        ids=surroundings.ids,
        chance=surroundings.chance,
        settings=part_settings.directory_settings(config.now),
        move_bytes_per_second=lambda: part_settings.move_bytes_per_second(config.now),
    )
    return Storage(directories)


async def open_directories(ground: Ground, directories: LogDirectories) -> str | None:
    """Lock the directories and learn from them who this broker is; return the id of the cluster that they
    belong to, if they belong to one."""
    await directories.open()
    identity = directories.read_identity() or {}
    config = ground.config.now
    if "node.id" in identity and not part_settings.has_node_id(config):
        config = config.with_static("node.id", identity["node.id"])
        ground.config.replace(config)
    if config.is_clustered and not part_settings.has_node_id(config):
        raise InvalidConfig("node.id", None, "a broker of a cluster needs a number of its own")
    _check_store_directory(config, directories)
    return identity.get("cluster.id")


def _check_store_directory(config: BrokerConfig, directories: LogDirectories) -> None:
    """Refuse to start without the store's directory: a new store elsewhere would know nothing of the
    topics."""
    for path, reason in directories.offline.items():
        if not config.is_clustered and config.metadata_store_path.startswith(f"{path}/"):
            raise LogDirectoryOffline(path, f"{reason} (the metadata store is in it)")


def build_replicas(ground: Ground, storage: Storage, roles: Roles | None) -> LocalReplicas:
    return LocalReplicas(
        storage.directories,
        storage.partitions,
        node_id=ground.config.now.node_id,
        flush_wanted=storage.flusher.wanted,
        roles=roles,
    )


def build_reconciler(ground: Ground, metadata: Metadata, replicas: LocalReplicas) -> Reconciler:
    """From here on the configuration is what the metadata says on top of the file."""
    config = ground.config
    reconciler = Reconciler(
        metadata,
        replicas,
        node_id=config.now.node_id,
        static=config.now.layers.static,
        on_broker_settings=lambda layers: config.replace(BrokerConfig(layers)),
    )
    reconciler.load_settings(metadata.image)
    return reconciler


async def load_logs(
    ground: Ground,
    directories: LogDirectories,
    metadata: Metadata,
    reconciler: Reconciler,
    on_progress: Callable[[LoadProgress], None],
) -> None:
    """Find all logs and check those that need it; then take in what the metadata does not know."""
    default = topic_settings({}, ground.config.now.layers).log

    def log_config_of(topic_partition: TopicPartition) -> LogConfig:
        topic = metadata.image.topics.get(topic_partition.topic)
        return default if topic is None else reconciler.settings_of(topic).log

    def tell(progress: LoadProgress) -> None:
        on_progress(progress)
        if not progress.is_clean and progress.logs_total and progress.logs_done % LOGS_BETWEEN_NEWS == 0:
            log.info(
                "checking logs after an unclean stop",
                extra={
                    "logs": f"{progress.logs_done}/{progress.logs_total}",
                    "bytes": f"{progress.bytes_done}/{progress.bytes_total}",
                },
            )

    await directories.load(log_config_of, tell, belongs_to(metadata.image))
    await _adopt(ground, directories, metadata)


async def _adopt(ground: Ground, directories: LogDirectories, metadata: Metadata) -> None:
    """Take in what is on the disk and not in the metadata: Kafka's directory, or ours after the store was
    lost."""
    known = metadata.image.topics
    directories.doubt_ids({name: topic.topic_id for name, topic in known.items()})
    found = []
    next_producer_id = 0
    recovered = directories.recovered
    for topic_partition, partition_log in directories.logs.items():
        is_known = topic_partition.topic in known
        if not is_known and metadata.image.members:
            # In a cluster the store knows better: the log may be left over from a topic that is gone.
            log.warning("a log of an unknown topic is left alone", extra={"log": str(topic_partition)})
            continue
        epoch = NO_EPOCH
        if not is_known or topic_partition in recovered:
            epoch = Epoch(partition_log.latest_epoch)
        if not is_known:
            highest = max(partition_log.producers.entries, default=-1)
            next_producer_id = max(next_producer_id, highest + 1)
        found.append(
            FoundLog(topic_partition.topic, topic_partition.partition, partition_log.topic_id, epoch)
        )
    strays = await metadata.adopt_logs(
        found, node_id=ground.config.now.node_id, next_producer_id=next_producer_id
    )
    for stray in strays:
        directories.set_aside(TopicPartition(stray.topic, stray.partition))
