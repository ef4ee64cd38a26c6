from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.config.config import BrokerConfig, load
from millrace.broker.config.listeners import Listener
from millrace.core.properties import parse_properties
from millrace.metadata.errors import InvalidConfig


def write(directory: Path, name: str, content: str) -> Path:
    path = directory / name
    path.write_text(content)
    return path


def test_without_any_source_everything_is_at_its_default() -> None:
    config = load(None, {}, {})
    assert config.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)
    assert config.advertised_listeners == {}
    assert config.node_id == 1
    assert not config.is_set("node.id")
    assert config.metadata_store_path == os.path.abspath("millrace-data/metadata.sqlite")
    assert config.metrics_listener == ("127.0.0.1", 9644)
    assert config.policy().num_partitions == 1


def test_variables_beat_options_and_options_beat_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, "broker.toml", "num.partitions = 2\nlog.retention.hours = 3\nfetch.max.bytes = 2000\n"
    )
    overrides = {"num.partitions": "4", "log.retention.hours": "5"}
    config = load(path, overrides, {"MILLRACE_NUM_PARTITIONS": "6", "MILLRACE_BOOTSTRAP": "x", "PATH": "y"})
    assert config.integer("num.partitions") == 6
    assert config.integer("log.retention.hours") == 5
    assert config.integer("fetch.max.bytes") == 2000


def test_toml_may_nest_quote_and_use_its_own_types(tmp_path: Path) -> None:
    content = """
        "max.connections" = 7
        log.dirs = ["a", "b"]
        [log.cleaner]
        enable = false
        min.cleanable.ratio = 0.25
    """
    config = load(write(tmp_path, "broker.toml", content), {}, {})
    assert config.integer("max.connections") == 7
    assert config.log_dirs == (os.path.abspath("a"), os.path.abspath("b"))
    assert config.boolean("log.cleaner.enable") is False
    assert config.number("log.cleaner.min.cleanable.ratio") == 0.25


def test_a_properties_file_of_kafka_is_read(tmp_path: Path) -> None:
    content = r"""
        # comment
        ! another
        log.dirs = a,\
            b
        broker.rack: z\u00fcrich
        listeners=PLAINTEXT\://h:1
    """
    config = load(write(tmp_path, "server.properties", content), {}, {})
    assert config.log_dirs == (os.path.abspath("a"), os.path.abspath("b"))
    assert config.optional_text("broker.rack") == "zürich"
    assert config.listeners == (Listener("PLAINTEXT", "h", 1, "PLAINTEXT"),)


def test_log_dir_counts_when_log_dirs_is_not_set() -> None:
    assert load(None, {"log.dir": "/one"}, {}).log_dirs == ("/one",)
    assert load(None, {"log.dir": "/one", "log.dirs": "/two/"}, {}).log_dirs == ("/two",)


def test_directories_are_told_apart_by_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="differ from each other"):
        load(None, {"log.dirs": "a,./a"}, {})
    first, second = tmp_path / "a", tmp_path / "b"
    both = f"{first},{second}"
    assert load(None, {"log.dirs": both}, {}).metadata_store_path == f"{first}/metadata.sqlite"
    second.mkdir()
    (second / "metadata.sqlite").touch()
    assert load(None, {"log.dirs": both}, {}).metadata_store_path == f"{second}/metadata.sqlite"


def test_named_listeners_and_ipv6_addresses() -> None:
    config = load(
        None,
        {
            "listeners": "inside://[::1]:9092,OUTSIDE://:9093",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "advertised.listeners": "OUTSIDE://broker.example.com:443",
            "max.connections.per.ip.overrides": "127.0.0.1:5,[::1]:6",
        },
        {},
    )
    assert [(listener.name, listener.host, listener.port) for listener in config.listeners] == [
        ("INSIDE", "::1", 9092),
        ("OUTSIDE", "", 9093),
    ]
    assert config.advertised_listeners == {"OUTSIDE": ("broker.example.com", 443)}
    assert config.connection_limits_by_ip == {"127.0.0.1": 5, "::1": 6}


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"num.partition": "1"}, "num.partition: unknown broker setting; did you mean num.partitions"),
        (
            {"num.partitions": "0"},
            r"num.partitions=0: not allowed \(given with --set\) \(allowed: at least 1\)",
        ),
        ({"retention.ms": "1"}, "for a broker it is called log.retention.ms"),
        ({"num.io.threads": "none"}, "num.io.threads=none: not a whole number"),
        (
            {"sasl.jaas.config": "Module required a=b;"},
            "^sasl.jaas.config: for one mechanism of one listener alone",
        ),
        ({"controller.quorum.voters": "1@a:1,2@b:1"}, "this broker would be alone"),
        ({"controller.listener.names": "PLAINTEXT"}, "it would serve clients"),
        ({"listeners": "here"}, "allowed: NAME://host:port"),
        ({"listeners": "PLAINTEXT://:99999"}, "not an address"),
        ({"listeners": "TLS://:9092"}, "TLS is missing in listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "differ from each other"),
        ({"listeners": ""}, "must be there"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "allowed: NAME:PROTOCOL"),
        ({"advertised.listeners": "OTHER://h:1"}, "no listener has this name"),
        (
            {"inter.broker.listener.name": "OTHER"},
            r"no listener has this name \(allowed: PLAINTEXT\)",
        ),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "not an address that a client can dial"),
        ({"log.dirs": "a,a"}, "differ from each other"),
        ({"log.dirs": ""}, "must be there"),
        ({"message.max.bytes": "2000", "socket.request.max.bytes": "1000"}, "could never arrive"),
        ({"metrics.listener": "127.0.0.1:9092"}, "its port is one of listeners"),
        ({"metrics.listener": "nowhere"}, "allowed: host:port"),
        ({"max.connections.per.ip.overrides": "1.2.3.4"}, "address:count"),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}, "larger than"),
        ({"group.consumer.session.timeout.ms": "1000"}, "allowed: 45000 to 60000"),
        ({"group.consumer.heartbeat.interval.ms": "20000"}, "allowed: 5000 to 15000"),
        (
            {"group.consumer.min.session.timeout.ms": "1", "group.consumer.session.timeout.ms": "4000"},
            "not longer than",
        ),
        ({"group.consumer.assignors": "uniform,sticky"}, "each at most once"),
        ({"group.consumer.assignors": ""}, "each at most once"),
        ({"group.share.max.delivery.count.limit": "4"}, "allowed: 1 to 4"),
        ({"group.streams.session.timeout.ms": "70000"}, "allowed: 45000 to 60000"),
        ({"group.streams.num.standby.replicas": "3"}, "allowed: 0 to 2"),
        ({"group.share.max.share.sessions": "100"}, r"less than group\.share\.max\.size, which is 200"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        load(None, overrides, {})


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("broker.toml", "num.partitions = = 1", "not TOML"),
        ("broker.toml", "max.connections = 1\nmax.connections.per.ip = 2", "in quotes"),
        ("broker.toml", "num.partitions = 1979-05-27", "neither a text, a number"),
        ("broker.toml", "num.partitions = 'x'", r"broker.toml\) \(allowed"),
        ("broker.yaml", "", r"must end in \.toml or \.properties"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        load(write(tmp_path, name, content), {}, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load(tmp_path / "absent.toml", {}, {})


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="did you mean MILLRACE_NUM_PARTITIONS"):
        load(None, {}, {"MILLRACE_NUM_PARTITION": "1"})


def test_what_the_cluster_sets_counts_before_the_file() -> None:
    config = load(None, {"max.connections": "1"}, {})
    dynamic = config.with_dynamic(default={"max.connections": "2"}, broker={})
    assert dynamic.integer("max.connections") == 2
    assert dynamic.with_dynamic(default={}, broker={"max.connections": "3"}).integer("max.connections") == 3
    assert config.with_static("node.id", "5").node_id == 5


def test_a_configuration_can_be_made_without_a_file() -> None:
    assert BrokerConfig().integer("num.partitions") == 1


NAMES = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=0x7FF), min_size=1, max_size=8)


def _escape(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


@given(st.dictionaries(NAMES, NAMES, max_size=4), st.sampled_from(["=", ":", " ", " = ", "\t:\t"]))
def test_properties_read_back_what_was_written(pairs: dict[str, str], separator: str) -> None:
    content = "".join(f"  {_escape(name)}{separator}{_escape(value)}\n" for name, value in pairs.items())
    assert parse_properties(content) == pairs


@given(st.text(alphabet="ab=: \\\n#!u0", max_size=30))
def test_no_text_breaks_the_reader_of_properties(content: str) -> None:
    assert all(isinstance(value, str) for value in parse_properties(content).values())


@pytest.mark.parametrize("name", ["offsets.topic.segment.bytes", "transaction.state.log.segment.bytes"])
def test_segments_too_small_for_a_topic_are_refused_at_the_start(name: str) -> None:
    """They were accepted, and then no coordinator ever came up (found by the simulator)."""
    with pytest.raises(InvalidConfig, match=name):
        load(None, {name: "16384"}, {})
    assert load(None, {name: "1048576"}, {}).integer(name) == 1_048_576


def test_settings_of_kafka_without_effect_are_accepted_and_named() -> None:
    config = load(
        None, {"num.io.threads": "8", "process.roles": "broker,controller", "num.partitions": "3"}, {}
    )
    assert config.without_effect == ("num.io.threads", "process.roles")
    assert config.texts("process.roles") == ("broker", "controller")
