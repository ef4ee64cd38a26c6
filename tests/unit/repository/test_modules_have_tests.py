"""Tests are found from the module: `src/millrace/a/b.py` has `tests/unit/a/test_b.py`, or a test beside it.

A test beside that place counts if it imports the module. What is tested in another way is named below, with
the place of its tests.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = ROOT / "src" / "millrace"
UNIT_TESTS: Final = ROOT / "tests" / "unit"

WITHOUT_RULES: Final = ("__init__.py", "__main__.py", "errors.py")
"""They hold names, an entry, or errors, which are met in the tests of those who raise them."""

TESTED_ELSEWHERE: Final = {
    "sim/": "tests/sim",
    "wire/messages/": "tests/unit/wire/test_generated_messages.py",
    "pipeline/spark/worker_site/": "tests/pipeline",
    "pipeline/analytics/run.py": "tests/pipeline/test_analytics.py",
    "pipeline/declared/check/deep.py": "tests/pipeline/test_declared_run.py",
    "pipeline/declared/run/jdbc.py": "tests/pipeline/test_databases.py",
    "pipeline/declared/run/payload_columns.py": "tests/pipeline/test_declared_run.py",
    "pipeline/declared/run/runner.py": "tests/pipeline/test_declared_run.py",
    "pipeline/lake/decoding.py": "tests/pipeline/test_lake_archive.py",
    "pipeline/payloads/columns.py": "tests/pipeline/test_payloads.py",
    "pipeline/payloads/dead_letters.py": "tests/pipeline/test_payloads.py",
}
"""The beginning of a module's path, and where its tests are."""

TYPES_ALONE: Final = (
    "broker/network/context.py",
    "groups/assignors/model.py",
    "log/partition/log_home.py",
    "queues/settings.py",
    "queues/share_partition/changes.py",
)
"""They say what others are given or have to offer, and do nothing themselves: no function in them has a body
but a property."""


def _modules() -> Iterator[str]:
    for path in sorted(SOURCES.rglob("*.py")):
        if path.name not in WITHOUT_RULES:
            yield str(path.relative_to(SOURCES))


def _imports_by_folder() -> dict[str, set[str]]:
    """The modules that the tests of each folder of `tests/unit` import."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in UNIT_TESTS.rglob("*.py"):
        folder = str(path.parent.relative_to(UNIT_TESTS))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                found[folder].update(names)
    return found


def _without_tests() -> list[str]:
    imports = _imports_by_folder()
    without = []
    for module in _modules():
        path = Path(module)
        folder = str(path.parent)
        name = "millrace." + ".".join(path.with_suffix("").parts)
        if (
            not (UNIT_TESTS / path.parent / f"test_{path.name}").exists()
            and name not in imports[folder]
            and module not in TYPES_ALONE
            and not any(module.startswith(beginning) for beginning in TESTED_ELSEWHERE)
        ):
            without.append(module)
    return without


def test_every_module_has_tests_that_are_found_from_its_path() -> None:
    without = _without_tests()
    assert not without, f"{len(without)} modules have no test in the mirrored place: {without}"


def test_places_of_tests_elsewhere_exist() -> None:
    modules = list(_modules())
    for beginning, place in TESTED_ELSEWHERE.items():
        assert (ROOT / place).exists(), place
        assert any(module.startswith(beginning) for module in modules), beginning


def _is_empty(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether there is nothing in it but a docstring or `...`."""
    return all(
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        for statement in function.body
    )


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "property" for node in function.decorator_list)


def test_modules_of_types_alone_do_nothing() -> None:
    busy = [
        f"{module}:{node.name}"
        for module in TYPES_ALONE
        for node in ast.walk(ast.parse((SOURCES / module).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not _is_empty(node) and not _is_property(node)
    ]
    assert not busy, f"they have something to test by now; take their modules out of TYPES_ALONE: {busy}"
