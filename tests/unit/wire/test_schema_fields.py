"""How a message is described: ranges of versions as Kafka's schema files write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.schema_fields import INT32_MAX, ZERO, Field, parse_versions


@pytest.mark.parametrize(
    "text, versions",
    [("3+", (3, INT32_MAX)), ("0-4", (0, 4)), ("7", (7, 7)), ("0+", (0, INT32_MAX))],
)
def test_a_range_is_read_as_in_the_schema_files(text: str, versions: tuple[int, int]) -> None:
    assert parse_versions(text) == versions


@pytest.mark.parametrize("text", ["none", "+", "a-b", "1-x"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_versions(text)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_field_is_in_the_versions_of_its_range_and_in_no_others(
    first: int, last: int, version: int
) -> None:
    assert Field("f", "int32", f"{first}-{last}").is_in(version) is (first <= version <= last)
    assert Field("f", "int32", f"{first}+").is_in(version) is (version >= first)


@given(st.integers(0, 20))
def test_a_field_is_never_null_unless_its_schema_says_so(version: int) -> None:
    assert not Field("f", "string", "0+").is_nullable_in(version)
    assert Field("f", "string", "0+", nullable="9+").is_nullable_in(version) is (version >= 9)


def test_a_field_without_a_default_has_the_zero_of_its_type() -> None:
    assert Field("f", "int32", "0+").default is ZERO
    assert Field("f", "int32", "0+", default=None).default is None
