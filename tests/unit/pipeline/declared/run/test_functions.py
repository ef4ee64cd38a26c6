"""Python functions for SQL: imported, shipped to workers, registered; what fails is said with its line."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.pipeline.declared.language.mistakes import Mark, Mistakes
from millrace.pipeline.declared.language.model import Function, Pipeline
from millrace.pipeline.declared.run.functions import register_functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Spark:
    def __init__(self) -> None:
        self.registered: dict[str, tuple[Any, ...]] = {}
        self.shipped: list[Path] = []
        self.own = ("newest_function",)
        self.udf = self
        self.sparkContext = self

    def register(self, name: str, *called: Any) -> None:
        self.registered[name] = called

    def addPyFile(self, path: str) -> None:  # noqa: N802 - Spark's name
        self.shipped.append(Path(path))

    def sql(self, statement: str) -> Spark:
        self._found = [name for name in self.own if f"'{name}'" in statement]
        return self

    def head(self, _count: int) -> list[str]:
        return self._found


@pytest.fixture(autouse=True)
def imports_as_before() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("declared_tools"):
            del sys.modules[name]


def registered(folder: Path, *calls: str) -> tuple[Spark, list[str]]:
    functions = {}
    for line, call in enumerate(calls):
        name, _, place = call.partition("=")
        module, _, attribute = place.partition(":")
        functions[name] = Function(
            name=name, mark=Mark(line + 1), module=module, attribute=attribute, returns="string"
        )
    pipeline = Pipeline(name="p", path=folder / "p.yaml", sources={}, functions=functions, steps={}, sinks={})
    spark, mistakes = Spark(), Mistakes()
    register_functions(cast("SparkSession", spark), pipeline, folder / "scratch", mistakes)
    return spark, [f"{each.mark.line}: {each.what}" for each in mistakes.found]


def test_a_module_beside_the_file_is_shipped_once_for_all_its_functions(tmp_path: Path) -> None:
    (tmp_path / "declared_tools.py").write_text("def a(x): return x\ndef b(x): return x + 'b'\n")
    spark, mistakes = registered(tmp_path, "one=declared_tools:a", "two=declared_tools:b")
    assert mistakes == []
    assert spark.shipped == [tmp_path / "declared_tools.py"]
    called, returns = spark.registered["two"]
    assert (called("a"), returns) == ("ab", "string")


def test_a_package_is_shipped_as_a_whole(tmp_path: Path) -> None:
    package = tmp_path / "declared_tools_packed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("def a(x): return x\n")
    spark, mistakes = registered(tmp_path, "one=declared_tools_packed.inner:a")
    assert mistakes == []
    (archive,) = spark.shipped
    assert archive == tmp_path / "scratch" / "declared_tools_packed.zip"
    assert "declared_tools_packed/inner.py" in zipfile.ZipFile(archive).namelist()


def test_installed_modules_are_not_shipped(tmp_path: Path) -> None:
    spark, mistakes = registered(tmp_path, "one=json:dumps")
    assert (list(spark.registered), spark.shipped, mistakes) == (["one"], [], [])


def test_what_cannot_be_called_is_said_and_the_others_are_registered(tmp_path: Path) -> None:
    (tmp_path / "declared_tools_bad.py").write_text("raise RuntimeError('at import')\n")
    (tmp_path / "declared_tools.py").write_text("number = 5\ndef a(x): return x\n")
    spark, mistakes = registered(
        tmp_path,
        "bad=declared_tools_bad:f",
        "number=declared_tools:number",
        "absent=declared_tools:absent",
        "newest_function=declared_tools:a",
        "good=declared_tools:a",
    )
    assert list(spark.registered) == ["good"]
    assert [text.partition(":")[0] for text in mistakes] == ["1", "2", "3", "4"]
    assert "declared_tools_bad cannot be imported: RuntimeError('at import')" in mistakes[0]
    assert "number is int, no function" in mistakes[1]
    assert "this Spark has a function newest_function of its own" in mistakes[3]
