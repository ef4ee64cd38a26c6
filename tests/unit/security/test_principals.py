"""Principals are written and read as Kafka does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.principals import (
    ANONYMOUS,
    NOBODY,
    Identity,
    InvalidPrincipal,
    Principal,
    parse_principal,
    user,
)


@pytest.mark.parametrize(
    "text, principal",
    [
        ("User:alice", Principal("User", "alice")),
        ("User:CN=a,OU=b", Principal("User", "CN=a,OU=b")),
        ("User:with:colons:", Principal("User", "with:colons:")),
        ("Role:ops", Principal("Role", "ops")),
        ("User:*", Principal("User", "*")),
        ("user:", Principal("user", "")),
        (":alice", Principal("", "alice")),
        (" User: alice", Principal(" User", " alice")),
    ],
)
def test_a_principal_is_all_before_the_first_colon_and_all_behind_it(text: str, principal: Principal) -> None:
    assert parse_principal(text) == principal
    assert str(principal) == text


@pytest.mark.parametrize("text", ["", "alice", "User", "User;alice"])
def test_a_text_without_a_colon_names_nobody(text: str) -> None:
    with pytest.raises(InvalidPrincipal, match="principalType:principalName"):
        parse_principal(text)


@given(kind=st.text().filter(lambda kind: ":" not in kind), name=st.text())
def test_what_is_written_is_read_back(kind: str, name: str) -> None:
    assert parse_principal(str(Principal(kind, name))) == (kind, name)


def test_types_and_names_are_told_apart_by_case() -> None:
    assert len({user("alice"), user("Alice"), Principal("user", "alice"), Principal("Role", "alice")}) == 4


def test_nobody_is_anonymous() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert Identity(principal=ANONYMOUS) == NOBODY
    assert (NOBODY.mechanism, NOBODY.groups, NOBODY.is_token, NOBODY.expires_ms) == (None, (), False, None)
