"""Lists of brokers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import InvalidOption
from millrace.client.servers import parse_servers

HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)


@given(st.lists(st.tuples(HOSTS, st.integers(1, 65535)), min_size=1, max_size=4))
def test_servers_are_read_in_their_order(servers: list[tuple[str, int]]) -> None:
    assert parse_servers(" , ".join(f"{host}:{port}" for host, port in servers)) == servers


def test_addresses_of_ipv6_lose_their_brackets_and_the_protocol_is_left_out() -> None:
    assert parse_servers("[::1]:9092,PLAINTEXT://b:1,") == [("::1", 9092), ("b", 1)]


@pytest.mark.parametrize("text", ["a", "a:", ":9092", "a:0", "a:65536", "a:b", "a:-1"])
def test_a_server_that_is_none_is_named(text: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        parse_servers(f"good:9092,{text}")
    assert str(refused.value) == f"bootstrap.servers: {text!r} is not host:port"


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_without_servers_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="names no server"):
        parse_servers(text)
