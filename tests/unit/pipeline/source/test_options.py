"""Options of the source: what is accepted, and that each mistake is named with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.client.broker_client import READ_COMMITTED, READ_UNCOMMITTED
from millrace.client.errors import InvalidOption
from millrace.client.security import read_security
from millrace.core.ids import TopicPartition
from millrace.pipeline.source.columns import DEFAULT_COLUMNS
from millrace.pipeline.source.options import SourceOptions, chosen_columns, read_options

BASE = {"bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def batch(**more: str) -> SourceOptions:
    return read_options({**BASE, **more}, streaming=False)


def stream(**more: str) -> SourceOptions:
    return read_options({**BASE, **more}, streaming=True)


def test_defaults_are_those_of_sparks_own_source() -> None:
    options = batch()
    assert (options.starting.kind, options.ending.kind) == ("earliest", "latest")
    assert stream().starting.kind == "latest"
    assert options.fail_on_data_loss
    assert options.isolation == READ_COMMITTED
    assert options.columns == DEFAULT_COLUMNS


def test_names_of_kafka_may_have_their_prefix_and_any_case() -> None:
    options = read_options(
        {
            "KAFKA.bootstrap.servers": "a:1,b:2",
            "Subscribe": "a, b",
            "kafka.isolation.level": "read_uncommitted",
            "INCLUDEHEADERS": "true",
        },
        streaming=False,
    )
    assert options.bootstrap == "a:1,b:2"
    assert options.topics == ("a", "b")
    assert options.isolation == READ_UNCOMMITTED
    assert options.columns == (*DEFAULT_COLUMNS, "headers")


def test_bounds_by_json_and_by_time() -> None:
    options = batch(startingOffsets='{"orders": {"0": 23, "1": -2}}', endingTimestamp="1700")
    assert options.starting.number(TopicPartition("orders", 0)) == 23
    assert options.starting.number(TopicPartition("orders", 2)) is None
    assert (options.ending.kind, options.ending.timestamp_ms) == ("timestamp", 1700)
    assert batch(startingOffsetsByTimestamp='{"orders": {"0": 5}}').starting.kind == "timestamps"


def test_topics_by_pattern_and_by_assignment() -> None:
    given = {"bootstrap.servers": "a:1", "assign": '{"b": [1, 0], "a": [2]}'}
    assert read_options(given, streaming=False).assigned == (
        TopicPartition("b", 0),
        TopicPartition("b", 1),
        TopicPartition("a", 2),
    )
    given = {"bootstrap.servers": "a:1", "subscribePattern": "ord.*"}
    assert read_options(given, streaming=True).pattern == "ord.*"


def test_limits_of_a_trigger() -> None:
    options = stream(maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (100, 10)
    assert options.max_trigger_delay_ms == 30_000
    assert stream(commitGroup="readers").commit_group == "readers"
    assert stream(**{"kafka.group.id": "readers"}).commit_group == "readers"


def test_columns_are_chosen_by_name() -> None:
    assert chosen_columns({"columns": "VALUE, offset"}) == ("value", "offset")
    assert chosen_columns({"columns": "value", "includeHeaders": "true"}) == ("value", "headers")


MISTAKES: list[tuple[dict[str, str], str]] = [
    ({"subscribe": " , "}, "subscribe is empty"),
    (
        {"subscribePattern": "a"},
        "one of subscribe, subscribePattern and assign: subscribe and subscribePattern",
    ),
    ({"bootstrap.servers": "nowhere"}, "'nowhere' is not host:port"),
    ({"bootstrap.servers": "a:99999"}, "'a:99999' is not host:port"),
    ({"bootstrap.servers": ""}, "names no server"),
    ({"kafka.bootstrap.servers": "b:1"}, "both given and differ"),
    ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
    ({"zzz": "1"}, "unknown option zzz: known are"),
    ({"path": "x"}, "load\\(\\) takes no path"),
    ({"startingOffsets": "first"}, "earliest, latest or JSON"),
    ({"startingOffsets": "latest"}, "would be empty"),
    ({"endingOffsets": "earliest"}, "would be empty"),
    ({"startingOffsets": '{"orders": 1}'}, "must be JSON such as"),
    ({"startingOffsets": '{"orders": {"x": 1}}'}, "must be JSON such as"),
    ({"startingOffsets": '{"orders": {"0": -3}}'}, "-3 for orders-0 is less than -2"),
    ({"endingOffsets": '{"orders": {"0": -2}}'}, "cannot be the end"),
    ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "are both given: choose one"),
    ({"startingTimestamp": "yesterday"}, "must be a whole number"),
    ({"minPartitions": "0"}, "minPartitions=0: must be at least 1"),
    ({"failOnDataLoss": "maybe"}, "must be true or false"),
    ({"isolation.level": "dirty"}, "must be read_committed or read_uncommitted"),
    ({"columns": "value,colour"}, "no column colour; there are key, value"),
    ({"columns": "value,value"}, "named twice"),
    ({"columns": ","}, "columns is empty"),
    ({"maxOffsetsPerTrigger": "5"}, "for spark.readStream only"),
    ({"commitGroup": "g"}, "for spark.readStream only"),
    ({"group.id": "g"}, "for spark.readStream only"),
    ({"security.protocol": "tls"}, "must be one of PLAINTEXT, SSL"),
    ({"sasl.username": "me"}, "use SASL_PLAINTEXT or SASL_SSL"),
    ({"security.protocol": "SASL_SSL"}, "needs sasl.username"),
    ({"ssl.ca.location": "/nowhere"}, "use SSL or SASL_SSL"),
    ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}, "there is no such file"),
]


@pytest.mark.parametrize("given, message", MISTAKES)
def test_each_mistake_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_options({**BASE, **given}, streaming=False)


def test_mistakes_of_streams() -> None:
    with pytest.raises(InvalidOption, match="endingOffsets is for spark"):
        stream(endingOffsets="latest")
    with pytest.raises(InvalidOption, match="maxTriggerDelay=soon: must be a number with ms, s, m or h"):
        stream(maxTriggerDelay="soon")
    with pytest.raises(InvalidOption, match="are both given and differ"):
        stream(commitGroup="a", **{"group.id": "b"})
    with pytest.raises(InvalidOption, match="none is given"):
        read_options({"bootstrap.servers": "a:1"}, streaming=True)
    with pytest.raises(InvalidOption, match="give host:port"):
        read_options({"subscribe": "a"}, streaming=True)
    with pytest.raises(InvalidOption, match="must name partitions"):
        read_options({"bootstrap.servers": "a:1", "assign": "[]"}, streaming=True)


def test_secrets_do_not_show(tmp_path: Path) -> None:
    options = batch(
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": "hush",
        }
    )
    assert options.security.mechanism == "SCRAM-SHA-512"
    assert "hush" not in repr(options)


def test_tls_files_are_tried_before_a_connection_is(tmp_path: Path) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate")
    security = read_security({"security.protocol": "ssl", "ssl.ca.location": str(bad)})
    with pytest.raises(InvalidOption, match="TLS certificates cannot be used"):
        security.tls_context()
