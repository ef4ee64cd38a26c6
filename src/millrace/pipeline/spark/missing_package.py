"""What to do when the Python of Spark's workers lacks this package: one text for all who meet that.

Spark pickles our classes by their names, so a worker without the package fails before any code of ours can
say why. Classes made by `Announced` travel with a function that goes along by value and says it.
"""

from __future__ import annotations

import copyreg
import re
from abc import ABCMeta
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

_ADVICE: Final = (
    "install millrace[spark] for it on every machine, name an interpreter that has it with PYSPARK_PYTHON, "
    "or send an environment along with spark.archives (docs/pipeline.md, On a cluster)"
)
_SAID: Final = re.compile(
    r"the Python of Spark's workers(?: \([^\n]*\))? has no package \w+: " + re.escape(_ADVICE)
)
_BARE: Final = re.compile(
    r"ModuleNotFoundError: No module named '(?P<name>millrace|pyspark|pyarrow|numpy)(?:\.[\w.]+)?'"
)


def missing_package(package: str, python: str = "") -> str:
    """The sentence for a package that workers need and do not have; `python` is their interpreter's path."""
    place = f" ({python})" if python else ""
    return f"the Python of Spark's workers{place} has no package {package}: {_ADVICE}"


def find_missing_package(text: str) -> str | None:
    """The sentence above if Spark's message says that workers lack a package of ours or that we need."""
    said = _SAID.search(text)
    if said is not None:
        return said[0]
    bare = _BARE.search(text)
    return None if bare is None else missing_package(bare["name"])


class Announced(ABCMeta):
    """The metaclass of classes that Spark's workers load: a worker that lacks one says what to do."""


def _load(module: str, name: str, advice: str) -> Any:
    """Runs in workers, where nothing of this module is known: it may use only arguments and imports."""
    import importlib
    import sys

    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(advice.replace("PYTHON_HERE", sys.executable), name=missing.name) from None
    return getattr(found, name)


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, pickled with its code: Spark's pickler does so with all of `__main__`."""
    assert isinstance(function, FunctionType), function
    copy = FunctionType(function.__code__, {"__builtins__": __builtins__}, function.__name__)
    copy.__module__ = "__main__"
    return copy


_load_by_value: Final = _by_value(_load)


def _reduce(announced: Announced) -> tuple[Callable[..., Any], tuple[str, str, str]]:
    package = announced.__module__.partition(".")[0]
    return _load_by_value, (
        announced.__module__,
        announced.__qualname__,
        missing_package(package, "PYTHON_HERE"),
    )


copyreg.pickle(Announced, _reduce)
