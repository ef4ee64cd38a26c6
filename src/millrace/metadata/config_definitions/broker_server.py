"""The broker-level settings of the server: who it is, where it listens, what it bounds, how it reports."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.broker_security import secret
from millrace.metadata.config_definitions.model import (
    INT_MAX,
    Check,
    ConfigType,
    Importance,
    OneOf,
    Range,
    Setting,
    UpdateMode,
    Value,
    split_list,
)

_HIGH: Final = Importance.HIGH
_LOW: Final = Importance.LOW
_DYNAMIC: Final = UpdateMode.CLUSTER_WIDE
_BOOLEAN, _INT, _LONG, _STRING, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.STRING,
    ConfigType.LIST,
)


def _is_overrides(value: Value) -> bool:
    assert isinstance(value, str), value
    for item in split_list(value):
        host, colon, limit = item.rpartition(":")
        if not (host and colon and limit.isascii() and limit.isdigit() and int(limit) <= INT_MAX):
            return False
    return True


def _is_host_port(value: Value) -> bool:
    assert isinstance(value, str), value
    if value == "":
        return True
    _, colon, port = value.rpartition(":")
    return bool(colon) and port.isascii() and port.isdigit() and int(port) <= 65535


_IDENTITY: Final = (
    Setting(
        name="node.id",
        type=_INT,
        default=1,
        doc="The broker's number in the cluster. A data directory remembers it and serves no other broker.",
        valid=Range(0),
        importance=_HIGH,
        deviates="Kafka demands a value; a single broker should start without any configuration",
    ),
    Setting(
        name="broker.rack",
        type=_STRING,
        default=None,
        doc="Where the broker stands (a rack, a zone, a host). Replicas of a partition are spread over "
        "racks. In a cluster a broker that is not told takes the name of its host, so that replicas share no "
        "machine where they can avoid it.",
    ),
)

_NETWORK: Final = (
    Setting(
        name="listeners",
        type=_LIST,
        default=("PLAINTEXT://127.0.0.1:9092",),
        doc="The addresses to listen on, as NAME://host:port. An empty host means all interfaces, port 0 "
        "any free port.",
        importance=_HIGH,
        deviates="Kafka listens on all interfaces; other machines should reach a broker only when it was "
        "told so",
    ),
    Setting(
        name="advertised.listeners",
        type=_LIST,
        default=None,
        doc="The addresses that clients are told to dial, as NAME://host:port with the names of listeners. "
        "Without it, clients get the address that they connected to.",
        importance=_HIGH,
    ),
    Setting(
        name="listener.security.protocol.map",
        type=_STRING,
        default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="Which security protocol each listener name stands for, as NAME:PROTOCOL pairs: PLAINTEXT, SSL, "
        "SASL_PLAINTEXT or SASL_SSL.",
        importance=_LOW,
    ),
    Setting(
        name="socket.request.max.bytes",
        type=_INT,
        default=104_857_600,
        doc="The size of the largest request. A connection that announces a larger one is closed before any "
        "memory is taken.",
        valid=Range(1),
        importance=_HIGH,
    ),
    Setting(
        name="socket.frame.timeout.ms",
        type=_LONG,
        default=30_000,
        doc="How long a client may take to send the rest of a request that it has begun. Then the "
        "connection is closed.",
        valid=Range(1),
    ),
    Setting(
        name="socket.idle.poll.us",
        type=_INT,
        default=400,
        doc="After a small batch or a small fetch that came alone, how many microseconds the broker looks "
        "for the next request before it goes to sleep. To wake up takes longer than to store a message, so "
        "messages that are sent one after the other arrive sooner. Where they are rarer, the broker notices "
        "and sleeps. 0 means to sleep always.",
        valid=Range(0, 100_000),
        importance=_LOW,
        update=_DYNAMIC,
    ),
    Setting(
        name="connections.max.idle.ms",
        type=_LONG,
        default=600_000,
        doc="After how much silence a connection is closed.",
        valid=Range(1),
    ),
    Setting(
        name="max.connections.per.ip",
        type=_INT,
        default=INT_MAX,
        doc="How many connections one client address may hold at once.",
        valid=Range(0),
        update=_DYNAMIC,
    ),
    Setting(
        name="max.connections.per.ip.overrides",
        type=_STRING,
        default="",
        doc="Other limits for single addresses, as address:count pairs separated by commas.",
        valid=Check(_is_overrides, "address:count pairs separated by commas"),
        update=_DYNAMIC,
    ),
)

_MEMORY: Final = (
    Setting(
        name="queued.max.request.bytes",
        type=_LONG,
        default=268_435_456,
        doc="How many bytes of requests the broker holds in memory at once. When full, it stops reading "
        "from connections until earlier requests are done. One request of any allowed size always fits. "
        "Answers that must wait for an earlier answer of their connection count too, up to half of it; a "
        "connection with 1 MiB of them is not read from until they have left.",
        valid=Range(1),
        deviates="Kafka has no limit unless told; memory should be bounded from the first day",
    ),
    Setting(
        name="dedup.memory.bytes",
        type=_LONG,
        default=134_217_728,
        doc="How much memory the ids of records may take in topics with dedup.window.ms. When it is full, "
        "the oldest ids of the partition with the most are forgotten before their time, and counted in "
        "millrace_dedup_ids_dropped. An id takes about 112 bytes.",
        valid=Range(1_048_576),
        update=_DYNAMIC,
    ),
    Setting(
        name="fetch.max.bytes",
        type=_INT,
        default=57_671_680,
        doc="The most bytes of records in the answer to one fetch.",
        valid=Range(1024),
    ),
    Setting(
        name="fetch.pacing.enable",
        type=_BOOLEAN,
        default=True,
        doc="Whether the broker holds back large answers, for at most half a second, to a consumer that "
        "catches up and stopped asking for a second after many of them, as librdkafka does when it holds "
        "more than its application has read. Consumers at the end of a log, and followers, never wait for "
        "this.",
        importance=_LOW,
        update=_DYNAMIC,
    ),
    Setting(
        name="max.incremental.fetch.session.cache.slots",
        type=_INT,
        default=1_000,
        doc="How many fetch sessions the broker remembers. Clients beyond that send their full list every "
        "time.",
        valid=Range(0),
    ),
    Setting(
        name="max.request.partition.size.limit",
        type=_INT,
        default=2_000,
        doc="How many partitions one answer to DescribeTopicPartitions holds at most.",
        valid=Range(1),
    ),
)

_TOPICS: Final = (
    Setting(
        name="auto.create.topics.enable",
        type=_BOOLEAN,
        default=True,
        doc="Whether a client that asks for a topic that does not exist creates it by that.",
        importance=_HIGH,
    ),
    Setting(
        name="delete.topic.enable",
        type=_BOOLEAN,
        default=True,
        doc="Whether topics can be deleted.",
        importance=_HIGH,
    ),
    Setting(
        name="num.partitions",
        type=_INT,
        default=1,
        doc="How many partitions a topic gets when its creator does not say.",
        valid=Range(1),
    ),
    Setting(
        name="default.replication.factor",
        type=_INT,
        default=1,
        doc="How many replicas a partition gets when the topic's creator does not say.",
        valid=Range(1, 32767),
    ),
)

_OPERATION: Final = (
    Setting(
        name="metrics.listener",
        type=_STRING,
        default="127.0.0.1:9644",
        doc="The host:port of the HTTP server for /metrics, /healthz, /readyz and /v1/groups. Empty switches "
        "it off, port 0 takes any free port.",
        valid=Check(_is_host_port, "host:port, or empty"),
    ),
    Setting(
        name="metrics.ssl.keystore.location",
        type=_STRING,
        default=None,
        doc="A PEM file with a private key and its chain of certificates: with it the HTTP server speaks TLS "
        "and nothing else. It is looked at every ten seconds.",
    ),
    secret("metrics.ssl.key.password", "The password of an encrypted key in metrics.ssl.keystore.location."),
    secret(
        "metrics.auth.token",
        "The token that readers of the HTTP server show, as Authorization: Bearer. Without one, and without "
        "metrics.auth.token.file, everybody who reaches the port may read.",
    ),
    Setting(
        name="metrics.auth.token.file",
        type=_STRING,
        default=None,
        doc="A file with that token, instead of metrics.auth.token. It is looked at every ten seconds.",
    ),
    Setting(
        name="metrics.auth.probes.open",
        type=_BOOLEAN,
        default=True,
        doc="Whether /healthz and /readyz answer those without the token, with the status alone: the probes "
        "of Kubernetes could show a token only if it stood in the open in the pod's description.",
    ),
    Setting(
        name="logging.level",
        type=_STRING,
        default="INFO",
        doc="From which level on the broker writes messages about itself.",
        valid=OneOf(("DEBUG", "INFO", "WARNING", "ERROR")),
    ),
    Setting(
        name="logging.format",
        type=_STRING,
        default="text",
        doc="Whether messages are lines for people (text) or one JSON object each.",
        valid=OneOf(("text", "json")),
    ),
    Setting(
        name="shutdown.timeout.ms",
        type=_LONG,
        default=30_000,
        doc="How long a stopping broker waits for requests in progress before it closes their connections.",
        valid=Range(0),
    ),
)

SERVER_SETTINGS: Final = _IDENTITY + _NETWORK + _MEMORY + _TOPICS + _OPERATION
