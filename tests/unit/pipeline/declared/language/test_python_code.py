"""Functions are found in modules that nobody runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.python_code import check_function, find_module


def said(folder: Path, attribute: str = "f", module: str = "tools") -> list[str]:
    mistakes = Mistakes()
    check_function(module, attribute, folder, Mark(3), mistakes, where="functions.f")
    assert all(each.mark == Mark(3) for each in mistakes.found)
    return [each.text() for each in mistakes.found]


@pytest.mark.parametrize("text", [
    "def f(x): return x",
    "async def f(x): return x",
    "class f: pass",
    "f = str.upper",
    "f: object = str.upper",
    "g, (f, *h) = str.upper, (1, 2, 3)",
    "from os.path import basename as f",
    "if True:\n    pass\nelse:\n    def f(x): return x",
    "try:\n    import nothing\nexcept ImportError:\n    def f(x): return x",
    "try:\n    pass\nfinally:\n    f = None",
    "with open('x'):\n    def f(x): return x",
    "from os.path import *",
])  # fmt: skip
def test_a_name_of_the_top_level_is_found_however_it_comes_there(text: str, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(text)
    assert said(tmp_path) == []


def test_names_inside_of_functions_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def g():\n    def f(): pass\n\ndef _hidden(): pass\ndef ff(): pass\n")
    assert said(tmp_path) == [
        "functions.f: the module 'tools' defines no 'f'; did you mean 'ff'? allowed: g, ff"
    ]


def test_a_module_is_never_run(tmp_path: Path) -> None:
    package = tmp_path / "packed"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "inner.py").write_text("def f(): pass\nraise SystemExit")
    before = set(sys.modules)
    assert said(tmp_path, module="packed.inner") == []
    assert find_module("packed.inner", tmp_path) == package / "inner.py"
    assert not {name for name in set(sys.modules) - before if name.startswith("packed")}


def test_a_module_that_is_not_there_is_said_with_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "tools_of_ours.py").write_text("")
    (text,) = said(tmp_path, module="tools_of_our")
    assert "there is no module 'tools_of_our'; did you mean 'tools_of_ours'?" in text
    assert find_module("tools_of_ours.inner", tmp_path) is None


def test_installed_modules_and_those_built_in_are_found(tmp_path: Path) -> None:
    assert said(tmp_path, "dumps", "json") == []
    assert said(tmp_path, "intern", "sys") == []


@pytest.mark.parametrize("content, words", [
    (b"def f(:\n", "tools.py:1: not Python"),
    (b"x = 1\0\n", "tools.py"),
    (b"# \xff\n", "cannot be read"),
])  # fmt: skip
def test_a_file_that_is_no_python_is_a_mistake(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_bytes(content)
    (text,) = said(tmp_path)
    assert words in text
