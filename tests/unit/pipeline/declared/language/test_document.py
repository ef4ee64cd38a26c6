"""How messages call a value of a pipeline's file."""

from __future__ import annotations

import pytest

from millrace.pipeline.declared.language.document import Items, Node, Scalar, Table, describe
from millrace.pipeline.declared.language.mistakes import Mark

PLACE = Mark(1)


def scalar(text: str, kind: str = "str") -> Scalar:
    return Scalar(text=text, kind=kind, mark=PLACE, text_mark=PLACE)


@pytest.mark.parametrize("node, words", [
    (Table(PLACE), "a table of keys"),
    (Items(PLACE), "a list"),
    (scalar("~", "null"), "nothing"),
    (scalar("12", "int"), "'12'"),
    (scalar("x" * 40), repr("x" * 40)),
])  # fmt: skip
def test_a_value_is_called_by_what_it_is(node: Node, words: str) -> None:
    assert describe(node) == words


def test_a_long_value_is_cut_so_that_the_message_stays_a_line() -> None:
    assert describe(scalar("y" * 41)) == repr("y" * 37 + "...")
