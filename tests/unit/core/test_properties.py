"""Java's .properties format, read as `java.util.Properties.load` reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.properties import parse_properties


def written(name: str, value: str) -> str:
    """A line as `java.util.Properties.store` writes it."""
    return f"{escaped(name, is_name=True)}={escaped(value, is_name=False)}"


def escaped(text: str, *, is_name: bool) -> str:
    out = []
    for place, character in enumerate(text):
        if character == " ":
            out.append("\\ " if is_name or place == 0 else " ")
        elif character in "\t\n\r\f":
            out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
        elif character in "=:#!\\":
            out.append("\\" + character)
        elif 0x20 <= ord(character) <= 0x7E:
            out.append(character)
        else:
            units = character.encode("utf-16-be")
            out.extend(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
    return "".join(out)


TEXTS = st.text(alphabet=st.sampled_from("ab =:#!\\\t\n\r\f\x0b\x85\u2028é😀"), max_size=8) | st.text(
    max_size=8
)


@given(st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=5), st.sampled_from(["\n", "\r", "\r\n"]))
def test_what_java_writes_is_read_again(properties: dict[str, str], line_end: str) -> None:
    lines = ["#A comment", *(written(name, value) for name, value in properties.items())]
    assert parse_properties(line_end.join(lines) + line_end) == properties


@pytest.mark.parametrize(
    "content, expected",
    [
        ("a=1\nb:2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a = 1\n  b  :  2  \n", {"a": "1", "b": "2  "}),
        ("# a=1\n! b=2\n\n   \n  # c=3\n", {}),
        ("a=1\na=2\n", {"a": "2"}),
        ("empty=\nalone\n", {"empty": "", "alone": ""}),
        ("a=b=c:d\n", {"a": "b=c:d"}),
        ("a\\=b=c\n", {"a=b": "c"}),
        ("path=c:\\\\kafka\n", {"path": "c:\\kafka"}),
        ("a\\\\=b\n", {"a\\": "b"}),
        # A line goes on behind a backslash, the blanks before the rest left out; no comment can stand there.
        ("a=1,\\\n    2,\\\n    # 3\n", {"a": "1,2,# 3"}),
        ("a=1\\\\\nb=2\n", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=\\u00e9\\u0041\n", {"a": "éA"}),
        # Blanks of Java: a form feed ends no line.
        ("a\f=\f1\n", {"a": "1"}),
        # What other readers take for the end of a line is a character like any other.
        ("a=x\x0by\x85z\u2028\n", {"a": "x\x0by\x85z\u2028"}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_java_reads_it(content: str, expected: dict[str, str]) -> None:
    assert parse_properties(content) == expected


def test_two_escapes_for_one_character_become_one_character() -> None:
    assert parse_properties("a=\\uD83D\\uDE00\n") == {"a": "😀"}


@given(st.text(alphabet=st.sampled_from("ab=: \\\t\f\nu0#!"), max_size=40) | st.text(max_size=40))
def test_any_text_is_read_as_some_properties(content: str) -> None:
    for name, value in parse_properties(content).items():
        assert isinstance(name, str)
        assert isinstance(value, str)
