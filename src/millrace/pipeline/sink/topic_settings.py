"""Settings of topics that a write makes, as options name them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from millrace.client.errors import InvalidOption

CONFIG_PREFIX: Final = "topicConfig."

# For a hint at a misspelt name. Brokers decide what they know; a test compares this with Millrace's own.
TOPIC_SETTINGS: Final = (
    "batch.validation",
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "dedup.window.ms",
    "delayed.delivery.enable",
    "delayed.delivery.max.ms",
    "delete.retention.ms",
    "errors.deadletterqueue.group.enable",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "internal.segment.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.decompressed.message.bytes",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "queue.priority",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
)


def check_config_names(names: Mapping[str, str]) -> None:
    """InvalidOption for a name that looks like a misspelt setting of topics."""
    for name in names:
        if not name:
            raise InvalidOption(f"{CONFIG_PREFIX} names no setting: such as {CONFIG_PREFIX}retention.ms")
        near = difflib.get_close_matches(name, TOPIC_SETTINGS, n=1)
        if near and name not in TOPIC_SETTINGS:
            raise InvalidOption(
                f"option {CONFIG_PREFIX + name!r}: topics have no such setting, did you mean "
                f"{CONFIG_PREFIX + near[0]!r}?"
            )
