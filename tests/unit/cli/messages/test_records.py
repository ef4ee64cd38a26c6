"""Messages as text: what is printed as JSON must be readable again, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.messages.records import (
    BadLine,
    Message,
    TextColumns,
    format_headers,
    from_json,
    from_line,
    parse_header,
    template_renderer,
    to_json,
    unescape,
)

CONTENTS = st.none() | st.binary(max_size=30) | st.text(max_size=30).map(lambda text: text.encode())


@given(
    key=CONTENTS,
    value=CONTENTS,
    headers=st.lists(st.tuples(st.text(max_size=10), CONTENTS), max_size=3),
    partition=st.integers(0, 100),
    timestamp_ms=st.integers(0, 2**45),
    is_base64=st.booleans(),
)
def test_a_json_line_read_back_is_the_same_message(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int,
    timestamp_ms: int,
    is_base64: bool,
) -> None:
    message = Message(key=key, value=value, headers=headers, partition=partition, timestamp_ms=timestamp_ms)

    line = to_json(message, is_base64=is_base64)

    assert "\n" not in line
    assert from_json(line.encode(), headers=[]) == message


def test_a_json_line_names_topic_and_offset() -> None:
    message = Message(topic="t", partition=1, offset=7, timestamp_ms=5, key=b"k", value=b"\xff", headers=[])
    assert to_json(message, is_base64=False) == (
        '{"topic":"t","partition":1,"offset":7,"timestamp":5,"key":"k","value_base64":"/w=="}'
    )


def test_a_value_that_is_json_itself_is_sent_as_json() -> None:
    assert from_json(b'{"value": {"amount": 3}}', headers=[]).value == b'{"amount":3}'


def test_json_headers_may_be_an_object_and_fixed_ones_are_added() -> None:
    message = from_json(b'{"headers": {"a": "1", "b": null}}', headers=[("c", b"3")])
    assert message.headers == [("a", b"1"), ("b", None), ("c", b"3")]


def test_json_timestamps_may_be_iso_times() -> None:
    assert from_json(b'{"timestamp": "1970-01-01T00:00:01Z"}', headers=[]).timestamp_ms == 1000


@pytest.mark.parametrize(
    "line, reason",
    [
        (b"{", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"valeu": 1}', "unknown field 'valeu'"),
        (b'{"partition": -1}', "partition"),
        (b'{"partition": "1"}', "partition"),
        (b'{"value": "a", "value_base64": "YQ=="}', "both"),
        (b'{"value_base64": "?"}', "not base64"),
        (b'{"value_base64": 3}', "is a string"),
        (b'{"timestamp": "yesterday"}', "ISO"),
        (b'{"timestamp": 1.5}', "milliseconds"),
        (b'{"headers": 3}', "headers are a list"),
        (b'{"headers": [{"value": "x"}]}', "a header is"),
    ],
)
def test_a_bad_json_line_is_refused_with_its_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        from_json(line, headers=[])


def test_a_line_is_a_value_and_a_separator_gives_it_a_key() -> None:
    plain = from_line(b"a:b:c", key_separator=None, is_base64=False, headers=[])
    keyed = from_line(b"a:b:c", key_separator=b":", is_base64=False, headers=[])
    assert (plain.key, plain.value) == (None, b"a:b:c")
    assert (keyed.key, keyed.value) == (b"a", b"b:c")


def test_base64_lines_carry_any_bytes() -> None:
    message = from_line(b"AA==:/w==", key_separator=b":", is_base64=True, headers=[])
    assert (message.key, message.value) == (b"\x00", b"\xff")


@pytest.mark.parametrize("line, separator", [(b"no separator", b":"), (b"***", None)])
def test_a_bad_line_is_refused(line: bytes, separator: bytes | None) -> None:
    with pytest.raises(BadLine):
        from_line(line, key_separator=separator, is_base64=separator is None, headers=[])


def test_text_prints_the_columns_that_are_asked_for() -> None:
    message = Message(
        partition=1, offset=2, timestamp_ms=0, key=b"k", value=b"v", headers=[("h", b"x"), ("e", None)]
    )
    columns = TextColumns(timestamps=True, offsets=True, headers=True, keys=True, separator="|")
    assert columns.render(message) == "1970-01-01T00:00:00.000Z|1:2|h=x,e|k|v"
    assert TextColumns().render(message) == "v"


def test_bytes_that_are_no_text_pass_through_the_text_format() -> None:
    rendered = TextColumns().render(Message(value=b"\xff\xfe", headers=[]))
    assert rendered.encode("utf-8", errors="surrogateescape") == b"\xff\xfe"


def test_a_template_fills_in_fields_and_escapes() -> None:
    render = template_renderer(r"{partition}:{offset}\t{key}={value} {{{size}}}")
    assert render(Message(partition=1, offset=2, key=b"k", value=b"vv", headers=[])) == "1:2\tk=vv {2}"


@pytest.mark.parametrize("template", ["{nope}", "{", "{value!r}", "{offset:x}", "{}"])
def test_a_bad_template_is_refused(template: str) -> None:
    with pytest.raises(BadLine, match="template"):
        template_renderer(template)


def test_headers_on_the_command_line_may_lack_a_value() -> None:
    assert parse_header("a=b=c") == ("a", b"b=c")
    assert parse_header("a") == ("a", None)
    assert format_headers([("a", b"1"), ("b", None)]) == "a=1,b"


def test_escapes_are_those_of_printf_and_others_stay() -> None:
    assert unescape(r"a\tb\\n\n\x\0") == "a\tb\\n\n\\x\0"
    assert unescape("end\\") == "end\\"
