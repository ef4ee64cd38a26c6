"""Every task has an owner that ends it and tells of its failure: `core/background.py` alone starts tasks.

The linter's ban knows functions of modules; a method of the loop has to be looked for.
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
STARTERS = ("create_task", "ensure_future", "TaskGroup")


def _starts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in STARTERS:
                yield f"{path.relative_to(SOURCES)}:{node.lineno}: {name}"


def test_tasks_are_started_by_their_owner_only() -> None:
    assert list(_starts(OWNER)), "the search does not find what is there"
    found = [
        start
        for path in sorted(SOURCES.rglob("*.py"))
        if path != OWNER and path.relative_to(SOURCES).parts[0] not in OTHER_WORLDS
        for start in _starts(path)
    ]
    assert not found, f"start tasks through core.background: {found}"
