"""Settings of Kafka 4.3 for what is not here, such as the streams protocol and tiered storage."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import LONG_MAX, Setting, Synonym
from millrace.metadata.config_definitions.without_effect_model import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    ONLY_FALSE,
    STRING,
    Row,
    because,
)

_REMOTE_METADATA: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)

_SHARE_PERSISTER: Final = "org.apache.kafka.server.share.persister.DefaultStatePersister"

FEATURES_WITHOUT_EFFECT: Final[tuple[Setting, ...]] = (
    *because(
        "waiting fetches of share groups are not kept in lists that have to be purged",
        Row("share.fetch.purgatory.purge.interval.requests", INT, 1000),
    ),
    *because(
        "the state of share groups is kept in the one way that there is",
        Row("group.share.persister.class.name", STRING, _SHARE_PERSISTER),
    ),
    *because(
        "all segments are on the broker's own disks",
        Row("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, update=CLUSTER_WIDE),
        Row("log.local.retention.bytes", LONG, -2, low=-2, update=CLUSTER_WIDE),
        Row("log.local.retention.ms", LONG, -2, low=-2, update=CLUSTER_WIDE),
        Row("remote.fetch.max.wait.ms", INT, 500, low=1, update=CLUSTER_WIDE),
        Row("remote.list.offsets.request.timeout.ms", LONG, 30_000, low=1, update=CLUSTER_WIDE),
        Row("remote.log.index.file.cache.total.size.bytes", LONG, 1_073_741_824, low=1, update=CLUSTER_WIDE),
        Row("remote.log.index.file.cache.ttl.ms", LONG, 900_000, low=-1),
        Row("remote.log.manager.copier.thread.pool.size", INT, 10, low=1, update=CLUSTER_WIDE),
        Row("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, low=1, update=CLUSTER_WIDE),
        Row("remote.log.manager.copy.quota.window.num", INT, 11, low=1),
        Row("remote.log.manager.copy.quota.window.size.seconds", INT, 1, low=1),
        Row("remote.log.manager.expiration.thread.pool.size", INT, 10, low=1, update=CLUSTER_WIDE),
        Row("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, low=1, update=CLUSTER_WIDE),
        Row("remote.log.manager.fetch.quota.window.num", INT, 11, low=1),
        Row("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, low=1),
        Row("remote.log.manager.follower.thread.pool.size", INT, 2, low=1, update=CLUSTER_WIDE),
        Row("remote.log.manager.task.interval.ms", LONG, 30_000, low=1),
        Row("remote.log.manager.task.retry.backoff.max.ms", LONG, 30_000, low=1),
        Row("remote.log.manager.task.retry.backoff.ms", LONG, 500, low=1),
        Row("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, low=0, high=0.5),
        Row("remote.log.manager.thread.pool.size", INT, 2, low=1),
        Row("remote.log.metadata.custom.metadata.max.bytes", INT, 128, low=0),
        Row("remote.log.metadata.manager.class.name", STRING, _REMOTE_METADATA),
        Row("remote.log.metadata.manager.class.path", STRING, None),
        Row("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config."),
        Row("remote.log.metadata.manager.listener.name", STRING, None),
        Row("remote.log.reader.max.pending.tasks", INT, 100, low=1),
        Row("remote.log.storage.manager.class.name", STRING, None),
        Row("remote.log.storage.manager.class.path", STRING, None),
        Row("remote.log.storage.manager.impl.prefix", STRING, "rsm.config."),
        Row("remote.log.storage.system.enable", BOOLEAN, False, valid=ONLY_FALSE),
    ),
)

TOPICS_WITHOUT_EFFECT: Final[tuple[Setting, ...]] = (
    *because(
        "all segments are on the broker's own disks",
        Row(
            "local.retention.bytes",
            LONG,
            -2,
            low=-2,
            synonyms=(Synonym("log.local.retention.bytes"),),
            update=CLUSTER_WIDE,
        ),
        Row(
            "local.retention.ms",
            LONG,
            -2,
            low=-2,
            synonyms=(Synonym("log.local.retention.ms"),),
            update=CLUSTER_WIDE,
        ),
        Row("remote.log.copy.disable", BOOLEAN, False, update=CLUSTER_WIDE),
        Row("remote.log.delete.on.disable", BOOLEAN, False, update=CLUSTER_WIDE),
        Row("remote.storage.enable", BOOLEAN, False, valid=ONLY_FALSE, update=CLUSTER_WIDE),
    ),
)
