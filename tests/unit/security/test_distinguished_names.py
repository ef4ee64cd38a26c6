"""Names of certificates are taken apart as RFC 2253 writes them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.distinguished_names import LENGTH_MAX, parse_distinguished_name, values_of
from millrace.security.errors import InvalidDistinguishedName


@pytest.mark.parametrize(
    "text, attributes",
    [
        ("", ()),
        ("CN=a,OU=b,O=c,C=d", (("CN", "a"), ("OU", "b"), ("O", "c"), ("C", "d"))),
        ("cn=a + ou=b;o=c", (("CN", "a"), ("OU", "b"), ("O", "c"))),
        (r"CN=Tkac\, Adam,OU=ITZ", (("CN", "Tkac, Adam"), ("OU", "ITZ"))),
        (r"CN=L\C4\8Di\C4\87", (("CN", "Lčić"),)),
        (r"CN=\ a\ ,OU= b ", (("CN", " a "), ("OU", "b"))),
        ('CN="a, b" ,OU=c', (("CN", "a, b"), ("OU", "c"))),
        ("1.2.840.113549.1.9.1=#1601,CN=", (("1.2.840.113549.1.9.1", "#1601"), ("CN", ""))),
        ("CN=a=b", (("CN", "a=b"),)),
    ],
)
def test_a_name_is_a_list_of_attributes(text: str, attributes: tuple[tuple[str, str], ...]) -> None:
    assert parse_distinguished_name(text) == attributes


@pytest.mark.parametrize(
    "text",
    ["a", "=a", "CN=a,", "CN=a,b", r"CN=a\x", "CN=a\\", 'CN="a', 'CN="a"b', r"CN=\FF", "C N=a", "Ü=a"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidDistinguishedName):
        parse_distinguished_name(text)


def test_a_name_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidDistinguishedName, match="characters"):
        parse_distinguished_name("CN=" + "a" * LENGTH_MAX)


def test_the_values_of_one_type_come_once_and_in_order() -> None:
    assert values_of("CN=x,OU=b,ou=a,OU=b", "ou") == ("b", "a")


def _written(value: str) -> str:
    return "".join("".join(f"\\{octet:02X}" for octet in one.encode()) for one in value)


@given(st.lists(st.tuples(st.sampled_from(("CN", "OU", "O")), st.text(max_size=8)), max_size=5))
def test_what_is_escaped_is_read_back(attributes: list[tuple[str, str]]) -> None:
    text = ",".join(f"{kind}={_written(value)}" for kind, value in attributes)
    assert parse_distinguished_name(text) == tuple(attributes)


@given(st.text(alphabet='CN=OU,+;\\" #1Fa', max_size=40))
def test_every_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidDistinguishedName):
        parse_distinguished_name(text)
