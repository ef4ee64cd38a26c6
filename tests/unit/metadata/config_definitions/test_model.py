"""What a setting is: text becomes a value and back, and what is not allowed is refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.metadata.config_definitions.model import (
    INT_MAX,
    LONG_MAX,
    Check,
    ConfigType,
    ListOf,
    OneOf,
    Range,
    Setting,
    Validator,
    Value,
    format_value,
    split_list,
    unknown_name,
)
from millrace.metadata.errors import InvalidConfig


def setting(type_: ConfigType, valid: Validator | None = None, *, sensitive: bool = False) -> Setting:
    return Setting(name="a.setting", type=type_, default=None, doc="It.", valid=valid, sensitive=sensitive)


@pytest.mark.parametrize(
    "type_, text, value",
    [
        (ConfigType.BOOLEAN, " TRUE ", True),
        (ConfigType.BOOLEAN, "false", False),
        (ConfigType.INT, "+5", 5),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.SHORT, "32767", 32_767),
        (ConfigType.LONG, "9223372036854775807", LONG_MAX),
        (ConfigType.DOUBLE, "1e-3", 0.001),
        (ConfigType.LIST, " a, b ,,c ", ("a", "b", "c")),
        (ConfigType.LIST, "", ()),
        (ConfigType.STRING, "  text  ", "text"),
    ],
)
def test_text_is_read_by_type(type_: ConfigType, text: str, value: Value) -> None:
    assert setting(type_).parse(text) == value


@pytest.mark.parametrize(
    "type_, text, reason",
    [
        (ConfigType.BOOLEAN, "1", "true or false"),
        (ConfigType.INT, "1.0", "a whole number of 32 bits"),
        (ConfigType.INT, "1_000", "a whole number of 32 bits"),
        (ConfigType.INT, "٣", "a whole number of 32 bits"),
        (ConfigType.INT, "-+3", "a whole number of 32 bits"),
        (ConfigType.INT, str(INT_MAX + 1), "out of range"),
        (ConfigType.SHORT, "32768", "out of range"),
        (ConfigType.LONG, str(-LONG_MAX - 2), "out of range"),
        (ConfigType.DOUBLE, "nan", "a number"),
        (ConfigType.DOUBLE, "1_0", "a number"),
        (ConfigType.DOUBLE, "٣", "a number"),
        (ConfigType.DOUBLE, "", "a number"),
    ],
)
def test_what_java_would_not_read_is_refused_with_what_is_allowed(
    type_: ConfigType, text: str, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        setting(type_).parse(text)


@pytest.mark.parametrize(
    "valid, accepted, refused, words",
    [
        (Range(1), (1, 10**12), (0, -1), "at least 1"),
        (Range(1, 9, also=(-1,)), (1, 9, -1), (0, 10, -2), "1 to 9, or -1"),
        (Range(0, 1), (0.0, 0.5, 1.0), (-0.1, 1.1), "0 to 1"),
        (OneOf(("a", "b")), ("a", "b"), ("c", "", "A"), "a, b"),
        (ListOf(("a", "b")), ((), ("b", "a")), (("c",), ("a", "a")), "a list of a, b, each at most once"),
        (Check(lambda value: value == 7, "seven"), (7,), (8,), "seven"),
    ],
)
def test_a_rule_accepts_what_its_words_say(
    valid: Validator, accepted: tuple[Value, ...], refused: tuple[Value, ...], words: str
) -> None:
    assert all(valid.accepts(value) for value in accepted)
    assert not any(valid.accepts(value) for value in refused)
    assert valid.describe() == words
    assert setting(ConfigType.STRING, valid).allowed() == words


def test_the_value_of_a_secret_is_in_no_error() -> None:
    secret = setting(ConfigType.PASSWORD, Check(lambda _: False, "nothing"), sensitive=True)
    with pytest.raises(InvalidConfig, match=r"\(hidden\)") as caught:
        secret.parse("hunter2")
    assert "hunter2" not in str(caught.value)


@given(
    st.one_of(
        st.tuples(st.just(ConfigType.BOOLEAN), st.booleans()),
        st.tuples(st.just(ConfigType.LONG), st.integers(-LONG_MAX - 1, LONG_MAX)),
        st.tuples(st.just(ConfigType.DOUBLE), st.floats(allow_nan=False)),
        st.tuples(
            st.just(ConfigType.LIST),
            st.lists(st.text("abc.-", min_size=1), max_size=4).map(tuple),
        ),
    )
)
def test_a_value_that_is_shown_is_read_again(typed: tuple[ConfigType, Value]) -> None:
    type_, value = typed
    text = format_value(value)
    assert text is not None
    assert setting(type_).parse(text) == value


@given(st.text(alphabet="a, \t", max_size=20))
def test_items_of_a_list_are_neither_empty_nor_padded(text: str) -> None:
    items = split_list(text)
    assert all(item and item == item.strip() and "," not in item for item in items)
    assert "".join(items).count("a") == text.count("a")


def test_no_value_has_no_text() -> None:
    assert format_value(None) is None
    assert format_value(()) == ""


def test_an_unknown_name_gets_a_hint_only_if_one_is_near() -> None:
    known = ["retention.ms", "segment.bytes"]
    assert "did you mean segment.bytes?" in str(unknown_name("segment.byte", known, "topic"))
    assert str(unknown_name("zzz", known, "topic")).endswith("unknown topic setting")
