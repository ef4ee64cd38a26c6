"""Python functions for SQL: imported by module path, shipped to Spark's workers, registered by name."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.pipeline.declared.check.builtin_functions import other_names
from millrace.pipeline.declared.language.mistakes import Mistakes
from millrace.pipeline.declared.language.model import Function, Pipeline
from millrace.pipeline.declared.language.python_code import find_module

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_functions(spark: SparkSession, pipeline: Pipeline, scratch: Path, mistakes: Mistakes) -> None:
    """Make every function of the pipeline callable from SQL."""
    folder = pipeline.path.absolute().parent
    shipped: set[str] = set()
    for function in pipeline.functions.values():
        where = f"functions.{function.name}"
        if _is_in_spark(spark, function.name):
            what = f"{where}: this Spark has a function {function.name} of its own and would call that"
            mistakes.add(function.mark, what, allowed=f"another name, such as {other_names(function.name)}")
            continue
        try:
            called = _imported(function, folder)
        except Exception as error:  # noqa: BLE001 - a user's module may raise anything
            mistakes.add(function.mark, f"{where}: {function.module} cannot be imported: {error!r}")
            continue
        if not callable(called):
            mistakes.add(
                function.mark, f"{where}: {function.attribute} is {type(called).__name__}, no function"
            )
            continue
        top = function.module.partition(".")[0]
        if top not in shipped:
            _ship(spark, top, folder, scratch)
            shipped.add(top)
        if function.kind == "pandas":
            from pyspark.sql.pandas import functions as pandas_functions

            make: Any = pandas_functions.pandas_udf
            called = make(called, function.returns)
            spark.udf.register(function.name, called)
        else:
            spark.udf.register(function.name, called, function.returns)


def _is_in_spark(spark: SparkSession, name: str) -> bool:
    """Ask Spark itself: another version may have functions that our list does not."""
    return bool(spark.sql(f"SHOW SYSTEM FUNCTIONS LIKE '{name}'").head(1))


def _imported(function: Function, folder: Path) -> object:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return getattr(importlib.import_module(function.module), function.attribute)


def _ship(spark: SparkSession, top: str, folder: Path, scratch: Path) -> None:
    """Send workers a module that lies beside the file; they find installed packages by themselves."""
    found = find_module(top, folder)
    if found is None or folder not in found.absolute().parents:
        return
    if found.name != "__init__.py":
        spark.sparkContext.addPyFile(str(found))
        return
    scratch.mkdir(parents=True, exist_ok=True)
    archive = shutil.make_archive(str(scratch / top), "zip", root_dir=folder, base_dir=top)
    spark.sparkContext.addPyFile(archive)
