"""Every task has an owner that ends it and tells of its failure: `core/background.py` alone starts tasks.

The linter's ban knows names of modules; a method of the loop has to be looked for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import millrace

SOURCES = Path(millrace.__file__).parent
OWNER = SOURCES / "core/background.py"
OTHER_WORLDS = ("sim", "pipeline", "cli")
"""The simulator owns what it simulates; the others have no broker's tasks."""
STARTERS = ("create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe", "Task")


def _starts(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if not any(starter in text for starter in STARTERS):
        return
    tree = ast.parse(text)
    annotations = {id(part) for node in ast.walk(tree) for part in _annotations_of(node)}
    for node in ast.walk(tree):
        if id(node) not in annotations and (name := _name_of(node)) in STARTERS:
            yield f"{path.name}:{getattr(node, 'lineno', 0)}: {name}"


def _name_of(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
            return name
        case _:
            return None


def _annotations_of(node: ast.AST) -> Iterator[ast.AST]:
    """A type may be named: only calls and references start something."""
    match node:
        case ast.AnnAssign(annotation=found) | ast.arg(annotation=ast.expr() as found):
            yield from ast.walk(found)
        case ast.FunctionDef(returns=ast.expr() as found) | ast.AsyncFunctionDef(returns=ast.expr() as found):
            yield from ast.walk(found)
        case _:
            pass


def test_the_search_finds_every_way_to_start_a_task(tmp_path: Path) -> None:
    ways = (
        "asyncio.get_running_loop().create_task(work())",
        "start = self._loop.create_task",
        "async with asyncio.TaskGroup() as group: pass",
        "asyncio.ensure_future(work())",
        "from asyncio import create_task as begin",
    )
    for way in ways:
        path = tmp_path / "example.py"
        path.write_text(f"async def example() -> None:\n    {way}\n", encoding="utf-8")
        assert list(_starts(path)), way


def test_tasks_are_started_by_their_owner_only() -> None:
    assert list(_starts(OWNER)), "the search does not find what is there"
    found = [
        start
        for path in sorted(SOURCES.rglob("*.py"))
        if path != OWNER and path.relative_to(SOURCES).parts[0] not in OTHER_WORLDS
        for start in _starts(path)
    ]
    assert not found, f"start tasks through core.background: {found}"
