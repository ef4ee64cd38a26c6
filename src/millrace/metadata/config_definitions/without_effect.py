"""Settings of Kafka 4.3 that mean nothing here, with Kafka's types, defaults and ranges: those of every
broker. They are accepted so that Kafka's files and tools work. `refused.py` has those that must not be."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import LONG_MAX, Check, ListOf, Setting, Value
from millrace.metadata.config_definitions.without_effect_model import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LIST,
    LONG,
    ONLY_FALSE,
    STRING,
    Row,
    because,
)


def _is_broker(value: Value) -> bool:
    """Whether the roles include broker: a process that is to be a controller alone must not come up."""
    return isinstance(value, tuple) and "broker" in value and set(value) <= {"broker", "controller"}


SERVER_WITHOUT_EFFECT: Final[tuple[Setting, ...]] = (
    *because(
        "a Millrace broker is one event loop; start one broker for each core",
        Row("background.threads", INT, 10, low=1, update=CLUSTER_WIDE),
        Row("group.coordinator.background.threads", INT, 2, low=1),
        Row("group.coordinator.threads", INT, 4, low=1),
        Row("log.cleaner.threads", INT, 1, low=0, update=CLUSTER_WIDE),
        Row("num.io.threads", INT, 8, low=1, update=CLUSTER_WIDE),
        Row("num.network.threads", INT, 3, low=1, update=CLUSTER_WIDE),
        Row("num.replica.alter.log.dirs.threads", INT, None),
        Row("remote.log.reader.threads", INT, 10, low=1, update=CLUSTER_WIDE),
        Row("share.coordinator.threads", INT, 1, low=1),
    ),
    *because(
        "patterns are matched anew as soon as topics change",
        Row("group.consumer.regex.refresh.interval.ms", INT, 600_000, low=10_000),
    ),
    *because(
        "a group is assigned as soon as its members change",
        Row("group.consumer.max.assignment.interval.ms", INT, 15_000, low=0),
        Row("group.consumer.min.assignment.interval.ms", INT, 0, low=0),
    ),
    *because(
        "a decision is written at once, which was measured to be faster",
        Row("group.coordinator.append.linger.ms", INT, -1, low=-1),
        Row("group.coordinator.cached.buffer.max.bytes", INT, 1_048_588, low=524_288, update=CLUSTER_WIDE),
        Row("share.coordinator.append.linger.ms", INT, -1, low=-1),
        Row("share.coordinator.cached.buffer.max.bytes", INT, 1_048_588, low=524_288, update=CLUSTER_WIDE),
    ),
    *because(
        "groups of clients and of consumers are served, others are not",
        Row(
            "group.coordinator.rebalance.protocols",
            LIST,
            ("classic", "consumer", "streams"),
            valid=ListOf(("classic", "consumer", "share", "streams")),
        ),
    ),
    *because(
        "log.cleaner.dedupe.buffer.size alone counts",
        Row("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, update=CLUSTER_WIDE),
    ),
    *because(
        "a failed directory is reported until the metadata has it",
        Row("log.dir.failure.timeout.ms", LONG, 30_000, low=1),
    ),
    *because(
        "log.flush.offset.checkpoint.interval.ms does both",
        Row("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, low=0),
    ),
    *because(
        "one connection to each broker carries all that is fetched from it",
        Row("num.replica.fetchers", INT, 1, low=1, update=CLUSTER_WIDE),
    ),
    *because(
        "a commit is answered when it is stored, or when leadership ends",
        Row("offsets.commit.timeout.ms", INT, 5000, low=1),
    ),
    *because(
        "coordinators load in pieces of a fixed size",
        Row("offsets.load.buffer.size", INT, 5_242_880, low=1),
        Row("share.coordinator.load.buffer.size", INT, 5_242_880, low=1),
        Row("transaction.state.log.load.buffer.size", INT, 5_242_880, low=1),
    ),
    *because(
        "records of coordinators are small, and stored as they are",
        Row("offsets.topic.compression.codec", INT, 0),
        Row("share.coordinator.state.topic.compression.codec", INT, 0),
    ),
    *because(
        "log.retention.check.interval.ms does both",
        Row("producer.id.expiration.check.interval.ms", INT, 600_000, low=1),
    ),
    *because(
        "memory is bounded in bytes, by queued.max.request.bytes",
        Row("queued.max.requests", INT, 500, low=1),
    ),
    *because(
        "the time between two tries is chosen by what failed",
        Row("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, low=0),
        Row("add.partitions.to.txn.retry.backoff.ms", INT, 20, low=1),
        Row("replica.fetch.backoff.ms", INT, 1000, low=0),
    ),
    *because(
        "requests between brokers have deadlines of their own",
        Row("request.timeout.ms", INT, 30_000),
        Row("socket.connection.setup.timeout.max.ms", LONG, 30_000),
        Row("socket.connection.setup.timeout.ms", LONG, 10_000),
    ),
    *because(
        "the listener takes as many waiting connections as the system lets it",
        Row("socket.listen.backlog.size", INT, 50, low=1),
    ),
    *because(
        "a transaction ends the moment its time is up",
        Row("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, low=1),
    ),
    *because(
        "the first batch of a transaction in a partition is always verified",
        Row("transaction.partition.verification.enable", BOOLEAN, True, update=CLUSTER_WIDE),
    ),
    *because(
        "no transaction outlives its timeout, so that only false may be asked for",
        Row("transaction.two.phase.commit.enable", BOOLEAN, False, valid=ONLY_FALSE),
    ),
    *because(
        "leaders are elected as soon as brokers come and go",
        Row("unclean.leader.election.interval.ms", LONG, 300_000, low=1),
    ),
    *because(
        "throttles count from moment to moment, and save up one second's worth at most",
        Row("alter.log.dirs.replication.quota.window.num", INT, 11, low=1),
        Row("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, low=1),
        Row("replication.quota.window.num", INT, 11, low=1),
        Row("replication.quota.window.size.seconds", INT, 1, low=1),
    ),
    *because(
        "the metadata is in metadata.store, and no controllers form a quorum",
        Row("controller.listener.names", LIST, ()),
        Row("controller.performance.always.log.threshold.ms", LONG, 2000, low=0),
        Row("controller.performance.sample.period.ms", LONG, 60_000, low=100),
        Row("controller.quorum.append.linger.ms", INT, 25, low=0),
        Row("controller.quorum.auto.join.enable", BOOLEAN, False),
        Row("controller.quorum.bootstrap.servers", LIST, ()),
        Row("controller.quorum.election.backoff.max.ms", INT, 1000, low=0),
        Row("controller.quorum.election.timeout.ms", INT, 1000, low=0),
        Row("controller.quorum.fetch.max.bytes", INT, 1_048_576, low=1),
        Row("controller.quorum.fetch.snapshot.max.bytes", INT, 1_048_576, low=1),
        Row("controller.quorum.fetch.timeout.ms", INT, 2000, low=0),
        Row("controller.quorum.request.timeout.ms", INT, 2000, low=0),
        Row("controller.quorum.retry.backoff.ms", INT, 20, low=0),
        Row("controller.quorum.voters", LIST, ()),
        Row("controller.socket.timeout.ms", INT, 30_000),
        Row("initial.broker.registration.timeout.ms", INT, 60_000),
        Row("internal.metadata.delete.delay.millis", LONG, 60_000),
        Row("internal.metadata.log.segment.bytes", INT, None),
        Row("internal.metadata.max.batch.size.in.bytes", INT, 8_388_608),
        Row("metadata.log.dir", STRING, None),
        Row("metadata.log.max.record.bytes.between.snapshots", LONG, 20_971_520, low=1),
        Row("metadata.log.max.snapshot.interval.ms", LONG, 3_600_000, low=0),
        Row("metadata.log.segment.bytes", INT, 1_073_741_824, low=8_388_608),
        Row("metadata.log.segment.ms", LONG, 604_800_000),
        Row("metadata.max.idle.interval.ms", INT, 500, low=0),
        Row("metadata.max.retention.bytes", LONG, 104_857_600),
        Row("metadata.max.retention.ms", LONG, 604_800_000),
        Row("process.roles", LIST, None, valid=Check(_is_broker, "broker, or broker,controller")),
        Row("server.max.startup.time.ms", LONG, LONG_MAX, low=0),
        Row("unstable.api.versions.enable", BOOLEAN, False),
        Row("unstable.feature.versions.enable", BOOLEAN, False),
    ),
    *because(
        "what waits is taken off its list the moment it need not wait any more",
        Row("delete.records.purgatory.purge.interval.requests", INT, 1),
        Row("fetch.purgatory.purge.interval.requests", INT, 1000),
        Row("producer.purgatory.purge.interval.requests", INT, 1000),
    ),
    *because(
        "metrics are at metrics.listener, as counters that Prometheus takes rates of",
        Row("kafka.metrics.polling.interval.secs", INT, 10, low=1),
        Row("kafka.metrics.reporters", LIST, ()),
        Row("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), update=CLUSTER_WIDE),
        Row("metrics.num.samples", INT, 2, low=1),
        Row("metrics.recording.level", STRING, "INFO"),
        Row("metrics.sample.window.ms", LONG, 30_000, low=1),
        Row("telemetry.max.bytes", INT, 1_048_576, low=1),
    ),
    *because(
        "the operating system tunes it by itself",
        Row("replica.socket.receive.buffer.bytes", INT, 65_536),
        Row("socket.receive.buffer.bytes", INT, 102_400),
        Row("socket.send.buffer.bytes", INT, 102_400),
    ),
)
