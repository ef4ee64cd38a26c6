"""The broker-level settings of a cluster: where its metadata lives, how a broker stays in it, when leaders
move."""

from __future__ import annotations

from typing import Final

from millrace.metadata.config_definitions.model import (
    Check,
    ConfigType,
    Importance,
    OneOf,
    Range,
    Setting,
    UpdateMode,
    Value,
)

_HIGH: Final = Importance.HIGH
_LOW: Final = Importance.LOW
_BOOLEAN, _INT, _LONG, _STRING, _LIST, _PASSWORD = (
    ConfigType.BOOLEAN,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.STRING,
    ConfigType.LIST,
    ConfigType.PASSWORD,
)


def _are_endpoints(value: Value) -> bool:
    assert isinstance(value, tuple), value
    return all(_is_endpoint(endpoint) for endpoint in value)


def _is_endpoint(text: str) -> bool:
    scheme, separator, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    return (
        (scheme in ("http", "https") if separator else True)
        and bool(host and colon)
        and port.isascii()
        and port.isdigit()
        and 0 < int(port) <= 65535
    )


_STORE: Final = (
    Setting(
        name="metadata.store",
        type=_STRING,
        default="embedded",
        doc="Where the cluster's metadata lives: embedded is a SQLite file of this one broker, etcd a store "
        "that all brokers of a cluster share.",
        valid=OneOf(("embedded", "etcd")),
        importance=_HIGH,
    ),
    Setting(
        name="metadata.store.path",
        type=_STRING,
        default=None,
        doc="The file of the embedded store; without it, metadata.sqlite in the first data directory.",
        importance=_LOW,
    ),
    Setting(
        name="etcd.endpoints",
        type=_LIST,
        default=None,
        doc="The members of the etcd cluster, each as http://host:port or, with TLS, https://host:port. One "
        "is used; the others are for when it fails.",
        valid=Check(_are_endpoints, "http://host:port or https://host:port, separated by commas"),
        importance=_HIGH,
    ),
    Setting(
        name="etcd.prefix",
        type=_STRING,
        default="millrace",
        doc="What all keys of this cluster begin with, so that several clusters can share one etcd.",
        valid=Check(lambda value: str(value).strip("/") != "", "a text that is not empty"),
    ),
    Setting(
        name="etcd.username",
        type=_STRING,
        default=None,
        doc="The user to log in to etcd as. It needs to read and write all keys under etcd.prefix.",
    ),
    Setting(
        name="etcd.password",
        type=_PASSWORD,
        default=None,
        doc="The password of etcd.username.",
        sensitive=True,
    ),
    Setting(
        name="etcd.tls.ca.file",
        type=_STRING,
        default=None,
        doc="A PEM file with the certificate authority that etcd's certificates are checked against; without "
        "it, those that gRPC trusts.",
    ),
    Setting(
        name="etcd.tls.cert.file",
        type=_STRING,
        default=None,
        doc="A PEM file with the certificate to show to etcd, where it asks for one.",
    ),
    Setting(
        name="etcd.tls.key.file",
        type=_STRING,
        default=None,
        doc="A PEM file with the private key of etcd.tls.cert.file.",
    ),
    Setting(
        name="etcd.request.timeout.ms",
        type=_INT,
        default=2_000,
        doc="How long to wait for an answer of one member of etcd.",
        valid=Range(100),
        importance=_LOW,
    ),
)

_SESSION: Final = (
    Setting(
        name="broker.session.timeout.ms",
        type=_INT,
        default=6_000,
        doc="The time of a broker's lease: one that is silent for so long is replaced. A broker that cannot "
        "renew its lease stops leading a tenth of this time before it can end. etcd counts in whole seconds.",
        valid=Range(2_000),
        deviates="Kafka waits for 9 s; a dead process is noticed by its connections, and a dead machine "
        "should not take much longer",
    ),
    Setting(
        name="broker.heartbeat.interval.ms",
        type=_INT,
        default=1_000,
        doc="How often a broker renews its lease.",
        valid=Range(10),
        deviates="Kafka renews every 2 s; with a shorter lease several attempts must fit into it",
    ),
    Setting(
        name="controlled.shutdown.enable",
        type=_BOOLEAN,
        default=True,
        doc="Whether a broker that is told to stop hands its partitions over to others first.",
    ),
)

_LEADERS: Final = (
    Setting(
        name="auto.leader.rebalance.enable",
        type=_BOOLEAN,
        default=True,
        doc="Whether partitions go back to their preferred leaders by themselves.",
        importance=_HIGH,
    ),
    Setting(
        name="leader.imbalance.check.interval.seconds",
        type=_LONG,
        default=300,
        doc="How often the controller looks for partitions that are not led by their preferred leaders.",
        valid=Range(1),
    ),
    Setting(
        name="leader.imbalance.per.broker.percentage",
        type=_INT,
        default=10,
        doc="Leadership goes back to a broker when others lead more than this share, in percent, of the "
        "partitions that it should lead.",
        valid=Range(0, 100),
    ),
)

_NEW_BROKERS: Final = (
    Setting(
        name="auto.rebalance.new.brokers",
        type=_BOOLEAN,
        default=False,
        doc="Whether a broker that joins the cluster for the first time is given its share of the replicas. "
        "The controller moves them there few at a time, and goes on where another controller stopped. When "
        "it is turned off, moves that have begun end, and no others begin.",
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="auto.rebalance.partitions.max",
        type=_INT,
        default=5,
        doc="How many partitions move at once to a new broker with auto.rebalance.new.brokers.",
        valid=Range(1, 1_000),
        update=UpdateMode.CLUSTER_WIDE,
    ),
    Setting(
        name="auto.rebalance.throttled.rate",
        type=_LONG,
        default=52_428_800,
        doc="How many bytes a second a new broker fetches of the replicas that auto.rebalance.new.brokers "
        "moves to it.",
        valid=Range(1),
        update=UpdateMode.CLUSTER_WIDE,
    ),
)

CLUSTER_SETTINGS: Final = _STORE + _SESSION + _LEADERS + _NEW_BROKERS
