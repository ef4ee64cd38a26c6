"""The JAAS line of Kafka's configurations is read as Kafka reads it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.credentials.jaas import JaasEntry, parse_jaas_config, plain_users
from millrace.security.errors import InvalidJaasConfig

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    "text, options",
    [
        (f"{MODULE} required;", {}),
        (f'{MODULE} required username="admin" password="p";', {"username": "admin", "password": "p"}),
        (f"{MODULE} REQUIRED a=b c='d e';", {"a": "b", "c": "d e"}),
        (f'{MODULE}\n  optional\n a = "b"\n ;\n', {"a": "b"}),
        (f'{MODULE} required a="x;y=z//not a comment";', {"a": "x;y=z//not a comment"}),
        (f'{MODULE} required /* one */ a="b" // two\n c=12345; // three', {"a": "b", "c": "12345"}),
        (f'{MODULE} required a="\\"q\\" \\\\ \\n \\101 \\x";', {"a": '"q" \\ \n A x'}),
        (f'{MODULE} required user_a-b.c="Grüße";', {"user_a-b.c": "Grüße"}),
        (f'{MODULE} required "user_with blank"="x" a="";', {"user_with blank": "x", "a": ""}),
        (f"{MODULE} required a=1 a=2;", {"a": "2"}),
    ],
)
def test_options_are_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas_config(text) == JaasEntry(MODULE, options)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "Login module not specified"),
        (" // nothing", "Login module not specified"),
        (";", "Login module not specified"),
        (MODULE, "control flag not specified"),
        (f"{MODULE};", "control flag not specified"),
        (f'{MODULE} user_a="secret";', "Invalid login module control flag"),
        (f"{MODULE} required", "not terminated by semi-colon"),
        (f'{MODULE} required a="secret"', "not terminated by semi-colon"),
        (f"{MODULE} required a;", "Value not specified for key 'a'"),
        (f"{MODULE} required a=;", "Value not specified for key 'a'"),
        (f"{MODULE} required a==b;", "Value not specified for key 'a'"),
        (f"{MODULE} required a=b c", "Value not specified for key 'c'"),
        (f"{MODULE} required =b;", "without a key"),
        (f'{MODULE} required a="secret;', "has no end"),
        (f'{MODULE} required a="secret\n";', "has no end"),
        (f'{MODULE} required a="secret\\', "has no end"),
        (f"{MODULE} required; {MODULE} required;", "several login modules"),
        (f'{MODULE} required a="sec"ret!;', "Value not specified for key number 2"),
    ],
)
def test_what_cannot_be_read_is_refused_without_showing_a_secret(text: str, problem: str) -> None:
    with pytest.raises(InvalidJaasConfig, match=problem) as refused:
        parse_jaas_config(text)
    assert "sec" not in str(refused.value)


def test_users_are_options_with_a_prefix() -> None:
    entry = parse_jaas_config(f'{MODULE} required username="x" user_alice="a" user_="none" user_user_b="b";')
    assert plain_users(entry) == {"alice": "a", "": "none", "user_b": "b"}
    with pytest.raises(InvalidJaasConfig, match="not of other"):
        plain_users(JaasEntry("other", {}))


def test_an_entry_does_not_show_its_options() -> None:
    entry = parse_jaas_config(f'{MODULE} required user_alice="topsecret";')
    assert "topsecret" not in repr(entry)
    assert "topsecret" not in str(entry)


@given(st.dictionaries(st.text("abcdefgh._-$ü", min_size=1, max_size=10), st.text(max_size=20), max_size=5))
def test_what_is_quoted_is_read_back(users: dict[str, str]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    options = " ".join(f"{quoted(f'user_{name}')}={quoted(value)}" for name, value in users.items())
    assert plain_users(parse_jaas_config(f"{MODULE} required {options};")) == users


@given(st.text("ab =;/*\"'\\\n0178required", max_size=60))
def test_every_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidJaasConfig):
        parse_jaas_config(text)
