"""Offsets and positions are plain integers in log/: no call may pass one where the other is meant."""

from __future__ import annotations

import ast
from pathlib import Path

import millrace.log

ON_THE_WAY_OF_EVERY_BATCH = {"note", "_add_index_entries"}
"""Called for each batch that is appended, where a keyword costs time."""


def mixes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a caller may pass an offset and a position without naming one of them."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return any(name.endswith("offset") for name in names) and any(name.endswith("position") for name in names)


def test_whoever_passes_an_offset_and_a_position_names_one_of_them() -> None:
    found = {
        function.name: path.name
        for path in Path(*millrace.log.__path__).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and mixes(function)
    }
    assert set(found) == ON_THE_WAY_OF_EVERY_BATCH, found


def test_the_rule_sees_what_it_forbids() -> None:
    (mixed,) = ast.parse("def cut(segment, position, end_offset): ...").body
    (named,) = ast.parse("def cut(segment, position, *, end_offset): ...").body
    assert isinstance(mixed, ast.FunctionDef)
    assert isinstance(named, ast.FunctionDef)
    assert mixes(mixed)
    assert not mixes(named)
