"""Names are placed where Kafka places them: `Utils.abs(text.hashCode())`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.java_hash import java_hash


@pytest.mark.parametrize(
    "text, expected",
    [
        # From Java's String.hashCode().
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("Hello, World!", 1_498_789_909),
        # Negative in Java: Kafka takes the absolute value.
        ("console-consumer", 648_006_740),
        # The least number has no absolute value: Kafka takes zero.
        ("polygenelubricants", 0),
        # Counted in UTF-16 units, of which this character has two.
        ("\U0001f600", 1_772_899),
    ],
)
def test_a_hash_is_that_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text())
def test_a_hash_never_is_negative_and_fits_into_an_int_of_java(text: str) -> None:
    assert 0 <= java_hash(text) < 2**31


@given(st.text(alphabet="ab\u00e9\ud7ff", max_size=6), st.text(alphabet="ab\u00e9\ud7ff", max_size=6))
def test_a_hash_follows_the_polynomial_of_java(first: str, second: str) -> None:
    value = 0
    for character in first + second:
        value = (value * 31 + ord(character)) % 2**32
    signed = value - 2**32 if value >= 2**31 else value
    assert java_hash(first + second) == (0 if signed == -(2**31) else abs(signed))
