"""Pipeline files in YAML: the values with their places, and slips with the line that has them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.pipeline.declared.language.document import Items, Node, Scalar, Table
from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.yaml_file import read_yaml


def plain(node: Node) -> Any:
    match node:
        case Table(entries=entries):
            return {key: plain(entry.value) for key, entry in entries.items()}
        case Items(values=values):
            return [plain(each) for each in values]
        case Scalar(text=text):
            return text


def read(text: str) -> tuple[Table | None, list[str]]:
    mistakes = Mistakes()
    tree = read_yaml(text, mistakes)
    return tree, [f"{each.mark.line}: {each.text()}" for each in mistakes.found]


NAMES = st.text(st.sampled_from("abc xyzäß"), min_size=1, max_size=6)
TREES = st.dictionaries(
    NAMES,
    st.recursive(
        NAMES,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


@given(TREES)
def test_a_tree_comes_back_as_it_was_written(tree: dict[str, Any]) -> None:
    # JSON is YAML too.
    found, mistakes = read(json.dumps(tree, ensure_ascii=False))
    assert found is not None
    assert (plain(found), mistakes) == (tree, [])


@given(st.text(st.sampled_from("ab:-[]{}&*|> \n\t'\"#!%@"), max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    tree, mistakes = read(text)
    assert tree is not None or mistakes


def test_values_know_their_lines_and_blocks_the_line_of_their_text() -> None:
    tree, _ = read("a: 1\nb: |\n  SELECT\n  2\nc:\n  - x\n  - null\n")
    assert tree is not None
    one, block, items = (tree.entries[key].value for key in "abc")
    assert one == Scalar(text="1", kind="int", mark=Mark(1, 4), text_mark=Mark(1, 4))
    assert isinstance(block, Scalar)
    assert (block.text, block.mark, block.text_mark) == ("SELECT\n2\n", Mark(2, 4), Mark(3, 1))
    assert isinstance(items, Items)
    assert [each.kind for each in items.values if isinstance(each, Scalar)] == ["str", "null"]
    assert tree.entries["c"].mark == Mark(5, 1)


@pytest.mark.parametrize("text, words", [
    ("a: 1\nb: 2\na: 3", "3: 'a' is here twice, first on line 1"),
    ("? [x]\n: 1\n", "1: a key that is not a word"),
    ("a: b: c", "1: not YAML: mapping values are not allowed here (a value with ': ' in it needs quotes)"),
    ("a:\n\tb: 1", "(tabs do not indent in YAML: use spaces)"),
    ("a: \x01", "1: not YAML"),
    ("# only this", "1: the file is empty"),
])  # fmt: skip
def test_a_slip_is_said_with_its_line(text: str, words: str) -> None:
    _, mistakes = read(text)
    assert any(words in each for each in mistakes), mistakes


def test_an_alias_is_the_value_that_it_stands_for() -> None:
    tree, mistakes = read("a: &x {k: 1}\nb: *x")
    assert tree is not None
    assert (plain(tree), mistakes) == ({"a": {"k": "1"}, "b": {"k": "1"}}, [])


@pytest.mark.parametrize("depth, is_too_deep", [(20, False), (310, None), (350, None), (900, True)])
def test_lists_as_deep_as_no_pipeline_has_them_are_a_mistake_and_no_crash(
    depth: int, is_too_deep: bool | None
) -> None:
    """Between the two the stack that is left decides, and where it ends: in PyYAML's walk or in ours."""
    tree, mistakes = read("a: " + "[" * depth + "]" * depth)
    assert mistakes == (["1: not a pipeline: it is nested too deeply"] if tree is None else [])
    assert is_too_deep is None or (tree is None) == is_too_deep
