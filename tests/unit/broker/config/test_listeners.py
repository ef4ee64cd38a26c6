"""Addresses: their form, and what must hold between those of a broker."""

from __future__ import annotations

import pytest

from millrace.broker.config.listeners import (
    Listener,
    check_listeners,
    parse_advertised,
    parse_listeners,
)
from millrace.metadata.errors import InvalidConfig

PROTOCOLS = "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT"
OUTSIDE = Listener("PLAINTEXT", "", 9092, "PLAINTEXT")
INSIDE = Listener("INTERNAL", "10.0.0.1", 9093, "PLAINTEXT")


def test_listeners_have_a_name_a_host_and_a_port() -> None:
    found = parse_listeners(["plaintext://:9092", "INTERNAL://[fe80::1]:0"], PROTOCOLS)
    assert found == (OUTSIDE, Listener("INTERNAL", "fe80::1", 0, "PLAINTEXT"))


@pytest.mark.parametrize(
    "address",
    [
        "9092",
        "PLAINTEXT://host",
        "PLAINTEXT://host:65536",
        "PLAINTEXT://fe80::1:9092",
        "//host:1",
        "A B://h:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfig, match="not an address"):
        parse_listeners([address], PROTOCOLS)


def test_a_name_without_a_protocol_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"EXTERNAL is missing in listener\.security\.protocol\.map"):
        parse_listeners(["EXTERNAL://:9092"], PROTOCOLS)


@pytest.mark.parametrize("protocols", ["PLAINTEXT", "PLAINTEXT:KERBEROS"])
def test_a_protocol_that_is_not_served_is_refused(protocols: str) -> None:
    with pytest.raises(InvalidConfig, match="not a pair"):
        parse_listeners(["PLAINTEXT://:9092"], protocols)


@pytest.mark.parametrize("address", ["PLAINTEXT://:9092", "PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://host:0"])
def test_what_nobody_can_dial_is_not_advertised(address: str) -> None:
    with pytest.raises(InvalidConfig, match="not an address that a client can dial"):
        parse_advertised([address])


def test_a_listener_is_advertised_once() -> None:
    assert parse_advertised(["plaintext://host:1"]) == {"PLAINTEXT": ("host", 1)}
    with pytest.raises(InvalidConfig, match="twice"):
        parse_advertised(["PLAINTEXT://host:1", "PLAINTEXT://host:2"])


def test_sound_listeners_pass() -> None:
    check_listeners([OUTSIDE, INSIDE], {"PLAINTEXT": ("host", 1)}, between_brokers="internal")


@pytest.mark.parametrize(
    "listeners, advertised, between_brokers, reason",
    [
        ([], {}, None, "must be there"),
        ([OUTSIDE, OUTSIDE._replace(port=1)], {}, None, "differ from each other"),
        ([OUTSIDE, INSIDE._replace(host="", port=9092)], {}, None, "share an address"),
        ([OUTSIDE], {"INTERNAL": ("host", 1)}, None, "no listener has this name"),
        ([OUTSIDE], {}, "INTERNAL", "no listener has this name"),
    ],
)
def test_listeners_that_contradict_each_other_are_refused(
    listeners: list[Listener],
    advertised: dict[str, tuple[str, int]],
    between_brokers: str | None,
    reason: str,
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        check_listeners(listeners, advertised, between_brokers=between_brokers)


def test_any_free_port_is_nobody_elses() -> None:
    check_listeners([OUTSIDE._replace(port=0), INSIDE._replace(host="", port=0)], {}, between_brokers=None)
