"""The style of the house, as far as a program can see it. Each rule says what to do instead.

The limits are far from what is good (a module of 300 lines, a function of 30): they keep what is bad out.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = ROOT / "src" / "millrace"
TESTS: Final = ROOT / "tests"
GENERATED: Final = SOURCES / "wire" / "messages"

MODULE_LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 90
CONSTRUCTOR_PARAMETERS_MAX: Final = 8
SLEEP_S_MAX: Final = 0.2

LONG_FUNCTIONS: Final = {
    "wire/record_spans.py:scan_records": "a call for each varint would more than double the time of its loop",
}
"""Longer than is allowed, with the reason."""


@cache
def _parsed(folder: Path, mention: str = "") -> tuple[tuple[Path, ast.Module], ...]:
    """The modules of a folder, or those of them that mention something."""
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
        if not path.is_relative_to(GENERATED)
    }
    # Nothing of what is made here is garbage: the collector would look through all of it again and again.
    gc.disable()
    try:
        return tuple((path, ast.parse(text)) for path, text in texts.items() if mention in text)
    finally:
        gc.enable()


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCES if path.is_relative_to(SOURCES) else ROOT))


def test_modules_are_split_before_they_fill_up() -> None:
    long = {
        _name(path): lines
        for path, _ in _parsed(SOURCES)
        if (lines := path.read_text(encoding="utf-8").count("\n")) > MODULE_LINES_MAX
    }
    assert not long, f"over {MODULE_LINES_MAX} lines; give a part of it a module of its own: {long}"


def _long_functions() -> Iterator[tuple[str, int]]:
    for path, tree in _parsed(SOURCES):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield f"{_name(path)}:{node.name}", lines


def test_functions_are_read_without_scrolling() -> None:
    found = dict(_long_functions())
    long = {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS}
    assert not long, f"over {FUNCTION_LINES_MAX} lines; let its steps be functions with names: {long}"
    gone = set(LONG_FUNCTIONS) - set(found)
    assert not gone, f"short enough by now: take them out of LONG_FUNCTIONS: {gone}"


def _parameter_count(constructor: ast.FunctionDef) -> int:
    arguments = constructor.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1


def test_constructors_take_a_handful_of_parts() -> None:
    crowded = {
        f"{_name(path)}:{owner.name}": count
        for path, tree in _parsed(SOURCES)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        if (count := _parameter_count(node)) > CONSTRUCTOR_PARAMETERS_MAX
    }
    assert not crowded, (
        f"over {CONSTRUCTOR_PARAMETERS_MAX} parameters; group those that belong together: {crowded}"
    )


def _imported_elsewhere() -> dict[str, set[str]]:
    """The names that packages import of modules of other packages, by module."""
    names: dict[str, set[str]] = defaultdict(set)
    for path, tree in _parsed(SOURCES):
        package = path.relative_to(SOURCES).parts[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millrace."):
                module = node.module or ""
                if module.split(".")[1] != package:
                    names[module].update(alias.name for alias in node.names)
    return names


def _is_error(node: ast.ClassDef) -> bool:
    """The message of an error says what it is."""
    return any(re.search(r"(Error|Exception|Failed)$", ast.unparse(base)) for base in node.bases)


def test_classes_that_other_packages_meet_say_what_they_are() -> None:
    imported = _imported_elsewhere()
    silent = []
    for path, tree in _parsed(SOURCES):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        module = ".".join(("millrace", *parts)).removesuffix(".__init__")
        silent += [
            f"{_name(path)}:{node.name}"
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            and node.name in imported[module]
            and not _is_error(node)
            and ast.get_docstring(node) is None
        ]
    assert not silent, f"add a docstring of one line that says what it is: {silent}"


def test_decision_records_have_numbers_of_their_own_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "adr").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1)), f"number the decision records anew: {numbers}"


def _long_sleeps() -> Iterator[str]:
    for path, tree in _parsed(TESTS, mention="time.sleep"):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "time.sleep"
                and isinstance(node.args[0], ast.Constant)
                and isinstance(seconds := node.args[0].value, int | float)
                and seconds > SLEEP_S_MAX
            ):
                yield f"{_name(path)}:{node.lineno}: {seconds} s"


def test_tests_wait_for_conditions_and_not_for_time() -> None:
    found = list(_long_sleeps())
    assert not found, (
        "wait with `eventually`, or watch with `throughout` (tests/harness/process.py), instead of sleeping: "
        f"{found}"
    )
