"""Schemas as SQL writes them: what Spark takes is taken, and the rest is said with its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.declared.language.ddl import check_ddl, check_type
from millrace.pipeline.declared.language.mistakes import Mark, Mistake, Mistakes


def checked(text: str, line: int = 1, column: int = 1) -> tuple[list[str], list[Mistake]]:
    mistakes = Mistakes()
    return check_ddl(text, Mark(line, column), mistakes, where="s"), mistakes.found


SIMPLE = ("INT", "bigint", "string", "decimal(10, 2)", "varchar(5)", "INTERVAL DAY TO SECOND", "struct<>")


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map(lambda one: f"array<{one}>"),
        st.tuples(inner, inner).map(lambda pair: f"MAP<{pair[0]}, {pair[1]}>"),
        st.tuples(inner, inner).map(lambda pair: f"struct<a: {pair[0]} NOT NULL, `b c` {pair[1]}>"),
    )


TYPES = st.recursive(st.sampled_from(SIMPLE), nested, max_leaves=6)


@given(st.lists(TYPES, min_size=1, max_size=4))
def test_columns_of_any_nested_types_are_named_in_their_order(types: list[str]) -> None:
    names = [f"column_{number}" for number in range(len(types))]
    text = ", ".join(f"{name} {kind} COMMENT 'c, d'" for name, kind in zip(names, types, strict=True))
    assert checked(text) == (names, [])


@given(TYPES)
def test_a_type_that_is_cut_off_is_a_mistake_or_another_type_but_never_a_crash(kind: str) -> None:
    for end in range(len(kind)):
        mistakes = Mistakes()
        check_type(kind[:end], Mark(1), mistakes, where="t")
        if kind[:end].count("<") > kind[:end].count(">"):
            assert mistakes.found, kind[:end]


@given(st.text(st.sampled_from("ab,<>:() \n'`1"), max_size=20))
def test_no_text_breaks_the_parser(text: str) -> None:
    names, mistakes = checked(text)
    assert names or mistakes


@pytest.mark.parametrize("text, words", [
    ("", "the schema ends where a column's name should be"),
    ("id", "the schema ends where the type of 'id' should be"),
    ("id bigint,", "the schema ends where a column's name should be"),
    ("1 bigint", "'1' is no column's name"),
    ("id bigint name string", "'name' behind the column 'id'"),
    ("id bigint, ID string", "the column 'ID' is here twice"),
    ("tags array<string", "the schema ends where '>' behind ARRAY<... should be"),
    ("tags array", "the schema ends where '<' behind ARRAY should be"),
    ("m map<string>", "'>' behind the key's type of MAP<"),
    ("id 'x'", "is not a type"),
    ("d decimal(10", "the schema ends where ')' should be"),
])  # fmt: skip
def test_what_is_wrong_with_a_schema_is_said(text: str, words: str) -> None:
    _, mistakes = checked(text)
    assert any(words in each.what for each in mistakes), mistakes


def test_a_misspelt_type_does_not_hide_the_columns_behind_it() -> None:
    names, (mistake,) = checked("id bigint,\n  amount doubel, at timestamp", line=7, column=9)
    assert names == ["id", "amount", "at"]
    assert (mistake.mark, mistake.meant) == (Mark(8, 10), "double")
    assert "array<...>" in mistake.allowed


def test_a_struct_may_be_empty_as_it_may_in_spark() -> None:
    assert checked("a struct<>, b struct< > NOT NULL, c array<struct<>>") == (["a", "b", "c"], [])


def test_nothing_may_follow_a_single_type() -> None:
    mistakes = Mistakes()
    check_type("bigint NOT", Mark(1), mistakes, where="f")
    assert [each.what for each in mistakes.found] == ["f: 'NOT' behind the type"]
