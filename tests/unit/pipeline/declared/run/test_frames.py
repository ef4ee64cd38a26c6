"""What Spark says about a query, as a mistake with the line of the file."""

from __future__ import annotations

import pytest

from millrace.client.errors import InvalidOption
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import Step
from millrace.pipeline.declared.language.sql_text import Query
from millrace.pipeline.declared.run.frames import _place, note

SparkError = type("AnalysisException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})

UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amout` cannot be resolved. Did you \
mean one of the following? [`amount`]. SQLSTATE: 42703; line 2 pos 7;
== SQL ==
SELECT id,
       amout FROM orders"""


def step(line: int, column: int) -> Step:
    place = Mark(line, column)
    return Step(name="s", mark=Mark(1), sql="", sql_mark=place, query=Query())


def noted(error: Exception) -> str:
    mistakes = Mistakes()
    note(error, Mark(3), "steps.s", mistakes)
    (found,) = mistakes.found
    assert found.mark == Mark(3)
    return found.what


def test_sparks_words_come_without_its_class_its_place_and_the_query() -> None:
    found = noted(SparkError(UNRESOLVED))
    assert found.startswith("steps.s: A column with name `amout` cannot be resolved")
    assert not any(words in found for words in ("UNRESOLVED", "== SQL", "pos 7", "SQLSTATE"))


def test_our_own_refusals_are_mistakes_too() -> None:
    assert noted(InvalidOption("no driver.")) == "steps.s: no driver"


def test_a_bug_is_no_mistake_of_the_file() -> None:
    with pytest.raises(ZeroDivisionError):
        note(ZeroDivisionError(), Mark(1), "steps.s", Mistakes())


@pytest.mark.parametrize("text, line, column", [
    (UNRESOLVED, 11, 8),
    ("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. (line 1, pos 4)", 10, 9),
    ("something without a place", 10, 5),
])  # fmt: skip
def test_a_place_in_the_query_is_one_in_the_file(text: str, line: int, column: int) -> None:
    assert _place(SparkError(text), step(10, 5)) == Mark(line, column)
