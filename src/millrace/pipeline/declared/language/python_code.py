"""Looks for functions in Python modules without running them: validation must have no side effects."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes, closest


def check_function(
    module: str, attribute: str, folder: Path, mark: Mark, mistakes: Mistakes, *, where: str
) -> None:
    """Check that `module` can be found, beside the file or installed, and defines `attribute`."""
    if module in sys.builtin_module_names:
        return
    path = find_module(module, folder)
    if path is None:
        mistakes.add(
            mark,
            f"{where}: there is no module {module!r}",
            allowed=f"a module in {folder} or an installed one",
            meant=closest(module, sorted(each.stem for each in folder.glob("*.py"))) or "",
        )
        return
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        mistakes.add(mark, f"{where}: {path.name}:{error.lineno}: not Python: {error.msg}")
        return
    except (OSError, UnicodeDecodeError) as error:
        mistakes.add(mark, f"{where}: {path} cannot be read: {error}")
        return
    names = _defined(tree)
    # A module that imports all names of another may define any: only running it would tell.
    if attribute not in names and "*" not in names:
        functions = [name for name in names if not name.startswith("_")]
        mistakes.unknown(
            mark, f"{where}: the module {module!r} defines no {attribute!r}", attribute, functions
        )


def find_module(module: str, folder: Path) -> Path | None:
    """The file of a module; parents are searched for, never imported."""
    paths: list[str] | None = [str(folder), *sys.path]
    origin: str | None = None
    for part in module.split("."):
        if paths is None:
            return None
        spec = PathFinder.find_spec(part, paths)
        if spec is None:
            return None
        origin = spec.origin
        locations = spec.submodule_search_locations
        paths = None if locations is None else list(locations)
    return Path(origin) if origin else None


def _defined(tree: ast.Module) -> list[str]:
    """Names on the top level, also inside `if`, `try` and `with`."""
    names: dict[str, None] = {}
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop(0)
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = None
            case ast.Assign(targets=targets):
                # One statement may assign several names: `a, b = ...`.
                names |= {
                    node.id: None
                    for target in targets
                    for node in ast.walk(target)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = None
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name: None for alias in aliases}
            case ast.If(body=body, orelse=orelse):
                waiting = [*body, *orelse, *waiting]
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                caught = [each for handler in handlers for each in handler.body]
                waiting = [*body, *caught, *orelse, *finalbody, *waiting]
            case ast.With(body=body):
                waiting = [*body, *waiting]
            case _:
                pass
    return list(names)
