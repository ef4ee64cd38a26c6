"""The two tables by name, and the names of Kafka settings that mean nothing here."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.broker_cluster import CLUSTER_SETTINGS
from millrace.metadata.config_definitions.broker_consumer_groups import (
    CONSUMER_GROUP_SETTINGS,
    GROUP_OWN_SETTINGS,
)
from millrace.metadata.config_definitions.broker_groups import GROUP_SETTINGS
from millrace.metadata.config_definitions.broker_log import LOG_SETTINGS
from millrace.metadata.config_definitions.broker_replication import REPLICATION_SETTINGS
from millrace.metadata.config_definitions.broker_server import SERVER_SETTINGS
from millrace.metadata.config_definitions.broker_transactions import TRANSACTION_SETTINGS
from millrace.metadata.config_definitions.model import Setting
from millrace.metadata.config_definitions.topic import TOPIC_SETTINGS

__all__: Final = ["BROKER_SETTINGS", "GROUP_OWN_SETTINGS", "KAFKA_ONLY", "TOPIC_SETTINGS"]

BROKER_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in sorted(
        LOG_SETTINGS
        + SERVER_SETTINGS
        + CLUSTER_SETTINGS
        + GROUP_SETTINGS
        + CONSUMER_GROUP_SETTINGS
        + TRANSACTION_SETTINGS
        + REPLICATION_SETTINGS,
        key=lambda setting: setting.name,
    )
}

_BY_THE_KERNEL: Final = "the operating system tunes it by itself"
_ONE_LOOP: Final = "a Millrace broker is one event loop; start one broker for each core"
_QUOTA_SECONDS: Final = "throttles count from moment to moment, and save up one second's worth at most"
_NO_QUORUM: Final = "Millrace keeps its metadata in metadata.store and has no controller quorum"

KAFKA_ONLY: Final[dict[str, str]] = {
    "background.threads": _ONE_LOOP,
    "broker.id": "it is called node.id",
    "controller.listener.names": _NO_QUORUM,
    "controller.quorum.bootstrap.servers": _NO_QUORUM,
    "controller.quorum.voters": _NO_QUORUM,
    "group.consumer.assignor.offload.enable": "an assignment takes milliseconds and is made in place",
    "group.consumer.regex.refresh.interval.ms": "patterns are matched anew as soon as topics change",
    "group.coordinator.append.linger.ms": "a decision is written at once, which was measured to be faster",
    "group.coordinator.threads": _ONE_LOOP,
    "log.cleaner.threads": "compaction runs in one worker process",
    "log.cleaner.io.buffer.load.factor": "log.cleaner.dedupe.buffer.size alone counts",
    "log.flush.start.offset.checkpoint.interval.ms": "log.flush.offset.checkpoint.interval.ms does both",
    "metadata.log.dir": _NO_QUORUM,
    "num.io.threads": _ONE_LOOP,
    "num.network.threads": _ONE_LOOP,
    "offsets.commit.timeout.ms": "a commit is answered when it is stored, or when leadership ends",
    "offsets.load.buffer.size": "groups are loaded in pieces of a fixed size",
    "offsets.topic.compression.codec": "records of groups are small, and stored as they are",
    "process.roles": _NO_QUORUM,
    "producer.id.expiration.check.interval.ms": "log.retention.check.interval.ms does both",
    "queued.max.requests": "memory is bounded in bytes, by queued.max.request.bytes",
    "replication.quota.window.num": _QUOTA_SECONDS,
    "replication.quota.window.size.seconds": _QUOTA_SECONDS,
    "socket.receive.buffer.bytes": _BY_THE_KERNEL,
    "socket.send.buffer.bytes": _BY_THE_KERNEL,
    "zookeeper.connect": _NO_QUORUM,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "it ends the moment its time is up",
}
"""Well-known settings of Kafka that have no counterpart, with the reason, for a helpful refusal."""
