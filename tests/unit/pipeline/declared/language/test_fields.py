"""The keys of a table: values of the right type, variables filled in, and a mistake for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.declared.language.fields import Fields, parse_duration_ms
from millrace.pipeline.declared.language.mistakes import Mistakes
from millrace.pipeline.declared.language.model import Trigger, Watermark
from millrace.pipeline.declared.language.yaml_file import read_yaml


def fields(text: str, **environment: str) -> tuple[Fields, Mistakes]:
    mistakes = Mistakes()
    table = read_yaml(text, mistakes)
    assert table is not None, mistakes.found
    return Fields(table, "w", mistakes, environment), mistakes


def said(mistakes: Mistakes) -> list[str]:
    return [each.text() for each in mistakes.found]


@pytest.mark.parametrize("text, found", [
    ("10 minutes", 600_000),
    ("1h30m", 5_400_000),
    ("1 hour, 30 minutes", 5_400_000),
    (" 90S ", 90_000),
    ("0.5 s", 500),
    ("1 week 1 day", 8 * 86_400_000),
    ("250 ms", 250),
    ("", None),
    ("10", None),
    ("minutes", None),
    ("10 parsecs", None),
    ("10 minutes and", None),
])  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str, found: int | None) -> None:
    assert parse_duration_ms(text) == found


@given(st.integers(0, 9), st.integers(0, 59), st.integers(0, 59), st.sampled_from(["", " ", ", "]))
def test_the_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int, between: str) -> None:
    text = between.join((f"{hours}h", f"{minutes} min", f"{seconds} seconds"))
    assert parse_duration_ms(text) == ((hours * 60 + minutes) * 60 + seconds) * 1000


@given(st.text(max_size=20))
def test_no_text_breaks_the_reading_of_durations(text: str) -> None:
    found = parse_duration_ms(text)
    assert found is None or found >= 0


def test_variables_and_their_defaults_are_filled_in() -> None:
    found, mistakes = fields("a: ${HOST}:${PORT:-9092}\nb: cost $$5 ${EMPTY:-}", HOST="db")
    assert (found.text("a"), found.text("b")) == ("db:9092", "cost $5 ")
    assert mistakes.found == []


def test_a_variable_that_is_not_set_is_a_mistake_with_the_one_that_was_meant() -> None:
    found, mistakes = fields("a: ${PGHST}", PGHOST="db", home="/")
    found.text("a")
    (text,) = said(mistakes)
    assert "the environment has no variable 'PGHST'; did you mean 'PGHOST'?" in text
    assert "${PGHST:-value}" in text


def test_keys_that_nobody_knows_are_said_with_the_known_ones() -> None:
    found, mistakes = fields("topic: a\nwatermrk: b")
    found.only(("topic", "watermark"))
    assert said(mistakes) == [
        "w: unknown key 'watermrk'; did you mean 'watermark'? allowed: topic, watermark"
    ]
    assert mistakes.found[0].mark.line == 2


def test_a_part_that_shares_a_table_does_not_see_the_keys_left_out() -> None:
    found, _ = fields("a: 1\nb: 2")
    rest = found.without("a")
    assert (rest.names(), "a" in rest, "a" in found) == (["b"], False, True)
    assert rest.mark_of("b").line == 2
    assert rest.mark_of("a") == found.mark


@pytest.mark.parametrize("text, texts", [
    ("k: a", ("a",)),
    ("k: a, b ,c", ("a", "b", "c")),
    ("k: [a, ' b ']", ("a", "b")),
    ("x: 1", ()),
])  # fmt: skip
def test_a_list_may_be_one_value_or_names_with_commas(text: str, texts: tuple[str, ...]) -> None:
    found, mistakes = fields(text)
    assert (found.texts("k"), mistakes.found) == (texts, [])


@pytest.mark.parametrize("text, words", [
    ("k: []", "k cannot be a list; allowed: a list of names"),
    ("k: [a, [b]]", "k cannot be a list; allowed: a list of names"),
    ("k: {a: 1}", "k cannot be a table of keys; allowed: a name or a list of names"),
    ("k:", "k cannot be nothing; allowed: a name or a list of names"),
    ("k: ''", "'k' is empty"),
    ("k: ' , '", "'k' is empty"),
])  # fmt: skip
def test_what_is_no_list_of_names_is_a_mistake(text: str, words: str) -> None:
    found, mistakes = fields(text)
    found.texts("k")
    assert said(mistakes) == [f"w: {words}"]


@pytest.mark.parametrize("text, words", [
    ("k: [1]", "k cannot be a list; allowed: a single value"),
    ("k: ~", "k cannot be nothing; allowed: a single value"),
    ("k: '  '", "'k' is empty"),
])  # fmt: skip
def test_what_is_no_single_value_is_a_mistake_and_the_default_holds(text: str, words: str) -> None:
    found, mistakes = fields(text)
    assert found.text("k", "default") == "default"
    assert said(mistakes) == [f"w: {words}"]


def test_numbers_and_flags_are_read_or_refused() -> None:
    found, mistakes = fields("a: 1_000\nb: 0\nc: -1\nd: yes\ne: FALSE\nf: perhaps\ng: 1.5")
    assert (found.count("a", 1), found.count("none", 7)) == (1000, 7)
    assert (found.flag("d", False), found.flag("e", True), found.flag("none", True)) == (True, False, True)
    assert mistakes.found == []
    assert [found.count(key, 7) for key in "bcg"] == [7, 7, 7]
    found.flag("f", True)
    assert [each.allowed for each in mistakes.found] == ["a whole number above 0"] * 3 + ["true, false"]


def test_choices_may_be_written_with_underscores() -> None:
    found, mistakes = fields("a: at_least_once\nb: exactly_onc\nc: a_b")
    assert found.choice("a", ("exactly-once", "at-least-once"), "exactly-once") == "at-least-once"
    assert found.choice("c", ("a_b", "c"), "c") == "a_b"
    assert mistakes.found == []
    assert found.choice("b", ("exactly-once", "at-least-once"), "at-least-once") == "at-least-once"
    assert mistakes.found[0].meant == "exactly-once"


def test_options_are_a_table_of_single_values() -> None:
    found, mistakes = fields('options: {a: 1, b: "${X}", c: [1]}\nother: 3', X="x")
    assert found.options("options") == {"a": "1", "b": "x"}
    assert said(mistakes) == ["w.options: c cannot be a list; allowed: a single value"]
    assert found.options("other") == {}
    assert len(mistakes.found) == 2


def test_a_watermark_is_a_column_and_a_delay() -> None:
    found, mistakes = fields("watermark: at  10 minutes")
    assert found.watermark() == Watermark("at", 600_000)
    assert mistakes.found == []
    for text in ("watermark: at", "watermark: at soon"):
        found, mistakes = fields(text)
        assert found.watermark() is None
        assert "is not a column and a delay" in mistakes.found[0].what


@pytest.mark.parametrize("text, trigger", [
    ("always", Trigger("always")),
    ("available_now", Trigger("available-now")),
    ("every 1m30s", Trigger("every", 90_000)),
])  # fmt: skip
def test_triggers_are_read(text: str, trigger: Trigger) -> None:
    found, mistakes = fields(f"trigger: {text}")
    assert (found.trigger(Trigger("x")), mistakes.found) == (trigger, [])


@pytest.mark.parametrize("text", ["evry 10 seconds", "every", "every 0 s", "10 seconds"])
def test_what_is_no_trigger_is_a_mistake_and_the_default_holds(text: str) -> None:
    found, mistakes = fields(f"trigger: {text}")
    assert found.trigger(Trigger("every", 5)) == Trigger("every", 5)
    assert "trigger cannot be" in mistakes.found[0].what


def test_a_key_that_must_be_there_is_missed_at_the_place_of_its_table() -> None:
    found, mistakes = fields("\n\na: 1")
    found.require("a", "a: X")
    found.require("b", "b: NAME")
    assert said(mistakes) == ["w: 'b' is missing; allowed: b: NAME"]
    assert mistakes.found[0].mark.line == 3
