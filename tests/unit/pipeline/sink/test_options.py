from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.client.errors import InvalidOption
from millrace.client.topic_creation import NewTopics
from millrace.metadata.config_definitions import TOPIC_SETTINGS as SETTINGS_OF_BROKERS
from millrace.pipeline.sink.options import check_columns, read_sink_options
from millrace.pipeline.sink.topic_settings import TOPIC_SETTINGS
from millrace.wire.compression import Codec

BASE = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}


def test_defaults_are_exactly_once_and_uncompressed() -> None:
    options = read_sink_options(BASE, is_streaming=True)
    assert options.is_exactly_once
    assert options.codec is Codec.NONE
    assert options.marker_topic == "orders"
    assert options.app_id is None


def test_missing_topics_are_made_as_the_broker_says_unless_options_say_more() -> None:
    assert read_sink_options(BASE, is_streaming=True).new_topics == NewTopics()
    wishes = {"topicPartitions": "6", "topicReplicas": "3", "topicConfig.of.another.broker": "x"}
    new = read_sink_options({**BASE, **wishes}, is_streaming=True).new_topics
    assert new == NewTopics(partitions=6, replicas=3, configs={"of.another.broker": "x"})


def test_the_names_for_hints_are_those_of_the_broker() -> None:
    assert set(TOPIC_SETTINGS) == set(SETTINGS_OF_BROKERS)


def test_names_of_kafka_may_have_sparks_prefix_and_any_case() -> None:
    given = {"bootstrap.servers": "a:1", "Kafka.Compression.Type": "ZSTD", "checkpointLocation": "/x"}
    options = read_sink_options(given, is_streaming=True)
    assert options.bootstrap == "a:1"
    assert options.codec is Codec.ZSTD
    assert options.marker_topic == "__millrace_sink_markers"


@pytest.mark.parametrize(
    "given, is_streaming, words",
    [
        ({"kafka.bootstrap.servers": ""}, True, "bootstrap.servers names no server"),
        ({"kafka.bootstrap.servers": "nonsense"}, True, "'nonsense' is not host:port"),
        ({"bootstrap.servers": "other:1"}, True, "are both given and differ"),
        ({"topic": "a b"}, True, "topic='a b': not a topic's name"),
        ({"markerTopic": "a/b"}, True, "markerTopic='a/b': not a topic's name"),
        ({"delivery": "twice"}, True, "delivery=twice: must be exactly_once or at_least_once"),
        ({"compression.type": "rar"}, True, "compression.type=rar: must be none, gzip, snappy, lz4 or zstd"),
        ({"batch.size": "big"}, True, "batch.size=big: must be a whole number from 1 to"),
        ({"transaction.timeout.ms": "1"}, True, "transaction.timeout.ms=1: must be a whole number from 1000"),
        ({"missingMarkers": "maybe"}, True, "missingMarkers=maybe: must be refuse or accept"),
        ({"delivry": "x"}, True, "option 'delivry' is not one of a writer's: did you mean 'delivery'"),
        ({"topicPartition": "3"}, True, "did you mean 'topicPartitions'"),
        ({"topicPartitions": "0"}, True, "topicPartitions=0: must be a whole number from 1 to"),
        ({"topicReplicas": "many"}, True, "topicReplicas=many: must be a whole number from 1 to"),
        ({"topicConfig.retention.m": "1"}, True, "did you mean 'topicConfig.retention.ms'?"),
        ({"topicConfg.retention.ms": "1"}, True, "did you mean 'topicConfig.retention.ms'?"),
        ({"topicConfig.": "1"}, True, "topicConfig. names no setting"),
        ({"subscribe": "x"}, True, "option 'subscribe' is not one of a writer's"),
        ({"txnAppId": "x", "txnVersion": "1"}, True, "for batch writes"),
        ({"txnAppId": "x"}, False, "belong together"),
        ({"txnAppId": "x", "txnVersion": "-1"}, False, "txnVersion=-1: must be a whole number"),
        (
            {"txnAppId": "x", "txnVersion": "1", "delivery": "at_least_once"},
            False,
            "which delivery=at_least_once cannot",
        ),
        ({"security.protocol": "TLS"}, True, "security.protocol=TLS: must be one of"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(
    given: dict[str, str], is_streaming: bool, words: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        read_sink_options({**BASE, **given}, is_streaming=is_streaming)
    assert words in str(refused.value)


def test_no_servers_at_all() -> None:
    with pytest.raises(InvalidOption, match=r"the option bootstrap\.servers is missing"):
        read_sink_options({"topic": "orders"}, is_streaming=False)


HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(HEADER),
    "map": MapType(StringType(), BinaryType()),
}


def columns(text: str) -> StructType:
    """Columns from words such as "key string; value binary"."""
    fields = [part.split() for part in text.split("; ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    "text",
    [
        "value binary",
        "key string; value string",
        "key binary; value binary; topic string; partition int; offset bigint; timestamp timestamp",
        "value binary; timestampType int",
        "value binary; headers headers; timestamp bigint",
    ],
)
def test_rows_that_can_be_written(text: str) -> None:
    check_columns(columns(text), read_sink_options(BASE, is_streaming=True))


@pytest.mark.parametrize(
    "text, words",
    [
        ("key string", "there is no column 'value', only key"),
        ("value int", "column 'value' is int: must be binary or string"),
        ("value binary; key double", "column 'key' is double: must be binary or string"),
        ("value binary; partition string", "column 'partition' is string: must be int"),
        ("value binary; timestamp string", "column 'timestamp' is string: must be timestamp, or bigint"),
        ("value binary; headers map", "must be array<struct<key:string,value:binary>>"),
        ("value binary; amount int", "column 'amount' cannot be written"),
        ("value binary; topic int", "column 'topic' is int: must be string"),
    ],
)
def test_rows_that_cannot_be_written(text: str, words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        check_columns(columns(text), read_sink_options(BASE, is_streaming=True))
    assert words in str(refused.value)


def test_rows_need_a_topic() -> None:
    options = read_sink_options({"bootstrap.servers": "a:1"}, is_streaming=True)
    with pytest.raises(InvalidOption, match="no topic is given"):
        check_columns(columns("value binary"), options)
    check_columns(columns("value binary; topic string"), options)
