"""The parts of tokens are read in one way only."""

from __future__ import annotations

import base64

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.security.jwt.segments import InvalidSegment, decode_segment, parse_object


@given(st.binary())
def test_what_is_encoded_is_decoded(content: bytes) -> None:
    assert decode_segment(base64.urlsafe_b64encode(content).rstrip(b"=").decode()) == content


@pytest.mark.parametrize("text", ["a", "aaaaa", "aa==", "a+/a", "aa\n", " aa", "äa", "aa.a"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidSegment):
        decode_segment(text)


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"null", b"{", b"\xff", b'{"a":NaN}', b"[" * 100_000])
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidSegment) as refused:
        parse_object(content)
    assert len(str(refused.value)) < 50


@given(st.dictionaries(st.text(), st.integers(-100, 100) | st.text() | st.lists(st.booleans())))
def test_objects_are_read(members: dict[str, object]) -> None:
    assert parse_object(orjson.dumps(members)) == members
