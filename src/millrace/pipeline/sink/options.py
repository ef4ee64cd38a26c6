"""What a writer is told: its options and the columns of its rows, checked before anything is written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millrace.client.broker_client import parse_servers
from millrace.client.errors import InvalidOption
from millrace.client.security import SECURITY_OPTIONS, SecurityOptions, read_security
from millrace.client.topic_creation import BROKERS_DEFAULT, NewTopics
from millrace.pipeline.sink.topic_settings import CONFIG_PREFIX, TOPIC_SETTINGS, check_config_names
from millrace.pipeline.topic_names import is_topic_name
from millrace.wire.compression import CODECS_BY_NAME, Codec

EXACTLY_ONCE: Final = "exactly_once"
AT_LEAST_ONCE: Final = "at_least_once"
DELIVERIES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE)

MARKER_TOPIC_DEFAULT: Final = "__millrace_sink_markers"
PREFIX_DEFAULT: Final = "millrace-sink"
STREAM_TRANSACTION_MS: Final = 5 * 60_000
BATCH_TRANSACTION_MS: Final = 15 * 60_000
"""As long as brokers allow by default: all tasks of a job are committed together, at its end."""
BATCH_BYTES_DEFAULT: Final = 1_000_000
BUFFER_BYTES_DEFAULT: Final = 8 << 20
"""Enough for full batches in several partitions, and little beside a worker's memory."""
DELIVERY_TIMEOUT_MS: Final = 120_000

# Kafka's own names; they may carry the prefix `kafka.`, as with Spark's Kafka sink.
_KAFKA_OPTIONS: Final = (
    "bootstrap.servers",
    "client.id",
    "compression.type",
    "batch.size",
    "buffer.memory",
    "transaction.timeout.ms",
    "delivery.timeout.ms",
    *SECURITY_OPTIONS,
)
_OWN_OPTIONS: Final = (
    "topic",
    "delivery",
    "markerTopic",
    "missingMarkers",
    "transactionalIdPrefix",
    "txnAppId",
    "txnVersion",
    "topicPartitions",
    "topicReplicas",
)
# Spark hands its own options on to every sink.
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "path", "outputmode"})

_CONFIG_PREFIX: Final = CONFIG_PREFIX.lower()
_PARTITIONS_MAX: Final = 100_000
_REPLICAS_MAX: Final = 2**15 - 1

_WRITTEN_COLUMNS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")
_IGNORED_COLUMNS: Final = ("offset", "timestampType")
"""Columns of the source that mean nothing here; rows may be written as they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one writer, checked."""

    bootstrap: str
    security: SecurityOptions
    topic: str | None
    delivery: str
    codec: Codec
    batch_bytes_max: int
    buffer_bytes: int
    """How much a task gathers before it sends."""
    transaction_timeout_ms: int
    delivery_timeout_ms: int
    id_prefix: str
    marker_topic: str
    accept_missing_markers: bool
    client_id: str
    app_id: str | None
    """With `app_version`, names a batch write so that its repetition is recognised."""
    app_version: int
    new_topics: NewTopics
    """How to make topics that are missing."""

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


def read_sink_options(options: Mapping[str, str], *, is_streaming: bool) -> SinkOptions:
    """The options of one writer; raises InvalidOption, which names the wrong one and says what is allowed."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    topic = given.get("topic")
    _check_topic("topic", topic)
    marker_topic = given.get("markertopic")
    _check_topic("markerTopic", marker_topic)
    delivery = _choice(given, "delivery", DELIVERIES)
    app_id, app_version = _application(given, delivery=delivery, is_streaming=is_streaming)
    transaction_ms = STREAM_TRANSACTION_MS if is_streaming else BATCH_TRANSACTION_MS
    return SinkOptions(
        bootstrap=_bootstrap(given),
        security=read_security(given),
        topic=topic,
        delivery=delivery,
        codec=_codec(given),
        batch_bytes_max=_number(given, "batch.size", BATCH_BYTES_DEFAULT, 1, 1 << 30),
        buffer_bytes=_number(given, "buffer.memory", BUFFER_BYTES_DEFAULT, 1, 1 << 30),
        transaction_timeout_ms=_number(given, "transaction.timeout.ms", transaction_ms, 1_000, 2**31 - 1),
        delivery_timeout_ms=_number(given, "delivery.timeout.ms", DELIVERY_TIMEOUT_MS, 1_000, 2**31 - 1),
        id_prefix=given.get("transactionalidprefix", PREFIX_DEFAULT),
        marker_topic=marker_topic or topic or MARKER_TOPIC_DEFAULT,
        accept_missing_markers=_choice(given, "missingMarkers", ("refuse", "accept")) == "accept",
        client_id=_kafka_option(given, "client.id") or "millrace-sink",
        app_id=app_id,
        app_version=app_version,
        new_topics=_new_topics(given),
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise InvalidOption unless the rows have columns and types that can be written."""
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    allowed = (*_WRITTEN_COLUMNS, *_IGNORED_COLUMNS)
    for name in types:
        if name not in allowed:
            raise InvalidOption(
                f"column {name!r} cannot be written: the columns of a record are "
                f"{', '.join(_WRITTEN_COLUMNS)}; put what belongs into the value, for instance with to_json"
            )
    if "value" not in types:
        raise InvalidOption(f"there is no column 'value', only {', '.join(types) or 'none at all'}")
    _check_type(types, "value", (BinaryType, StringType), "binary or string")
    _check_type(types, "key", (BinaryType, StringType), "binary or string")
    _check_type(types, "topic", (StringType,), "string")
    _check_type(types, "partition", (ShortType, IntegerType), "int")
    _check_type(
        types,
        "timestamp",
        (TimestampType, TimestampNTZType, LongType),
        "timestamp, or bigint in milliseconds",
    )
    headers = types.get("headers")
    if headers is not None and not _are_headers(headers):
        raise InvalidOption(
            f"column 'headers' is {headers.simpleString()}: must be array<struct<key:string,value:binary>>"
        )
    if options.topic is None and "topic" not in types:
        raise InvalidOption("no topic is given: set the option 'topic', or give the rows a column 'topic'")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, (BinaryType, StringType))
    )


def _check_type(
    types: Mapping[str, DataType], name: str, accepted: tuple[type[DataType], ...], words: str
) -> None:
    found = types.get(name)
    if found is not None and not isinstance(found, accepted):
        raise InvalidOption(f"column {name!r} is {found.simpleString()}: must be {words}")


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*_KAFKA_OPTIONS, *_OWN_OPTIONS)}
    candidates = known | {(CONFIG_PREFIX + name).lower(): CONFIG_PREFIX + name for name in TOPIC_SETTINGS}
    for name in given:
        if name.startswith(_CONFIG_PREFIX):
            continue
        plain = name.removeprefix("kafka.")
        if name in known or name in _SPARK_OPTIONS or (plain != name and plain in _KAFKA_OPTIONS):
            continue
        near = difflib.get_close_matches(plain, candidates, n=1)
        there_are = f"there are {', '.join(sorted(known.values()))}"
        hint = f"did you mean {candidates[near[0]]!r}?" if near else there_are
        raise InvalidOption(f"option {name!r} is not one of a writer's: {hint}")


def _new_topics(given: Mapping[str, str]) -> NewTopics:
    configs = {
        name.removeprefix(_CONFIG_PREFIX): value
        for name, value in given.items()
        if name.startswith(_CONFIG_PREFIX)
    }
    check_config_names(configs)
    return NewTopics(
        partitions=_number(given, "topicPartitions", BROKERS_DEFAULT, 1, _PARTITIONS_MAX),
        replicas=_number(given, "topicReplicas", BROKERS_DEFAULT, 1, _REPLICAS_MAX),
        configs=configs,
    )


def _bootstrap(given: Mapping[str, str]) -> str:
    servers = _kafka_option(given, "bootstrap.servers")
    if servers is None:
        raise InvalidOption("the option bootstrap.servers is missing: where are the brokers? (host:port)")
    parse_servers(servers)
    return servers


def _kafka_option(given: Mapping[str, str], name: str) -> str | None:
    plain, prefixed = given.get(name), given.get(f"kafka.{name}")
    if plain is not None and prefixed is not None and plain != prefixed:
        raise InvalidOption(f"{name} and kafka.{name} are both given and differ")
    return prefixed if plain is None else plain


def _check_topic(option: str, topic: str | None) -> None:
    if topic is not None and not is_topic_name(topic):
        raise InvalidOption(
            f"{option}={topic!r}: not a topic's name; allowed are up to 249 letters, digits, '.', '_' and '-'"
        )


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; the first is the default."""
    value = given.get(name.lower(), choices[0]).lower()
    if value not in choices:
        raise InvalidOption(f"{name}={value}: must be {' or '.join(choices)}")
    return value


def _codec(given: Mapping[str, str]) -> Codec:
    value = (_kafka_option(given, "compression.type") or "none").lower()
    codecs = {"none": Codec.NONE} | CODECS_BY_NAME
    if value not in codecs:
        raise InvalidOption(f"compression.type={value}: must be none, gzip, snappy, lz4 or zstd")
    return codecs[value]


def _number(given: Mapping[str, str], name: str, default: int, at_least: int, at_most: int) -> int:
    text = _kafka_option(given, name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"-?\d+", text.strip()) or not at_least <= int(text) <= at_most:
        raise InvalidOption(f"{name}={text}: must be a whole number from {at_least} to {at_most}")
    return int(text)


def _application(given: Mapping[str, str], *, delivery: str, is_streaming: bool) -> tuple[str | None, int]:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if app_id is None and version is None:
        return None, 0
    if is_streaming:
        raise InvalidOption("txnAppId and txnVersion are for batch writes: a stream has its query's id")
    if app_id is None or version is None:
        raise InvalidOption("txnAppId and txnVersion belong together: give both or none")
    if delivery != EXACTLY_ONCE:
        raise InvalidOption(f"txnAppId makes a repeated write harmless, which delivery={delivery} cannot")
    if not app_id or len(app_id) > 200:
        raise InvalidOption(f"txnAppId={app_id!r}: must have 1 to 200 characters")
    if not version.strip().isdecimal():
        raise InvalidOption(f"txnVersion={version}: must be a whole number from 0 on")
    return app_id, int(version)
