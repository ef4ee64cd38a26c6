"""Makes a pipeline of a file's tree: reads every part, and collects every mistake before it gives up."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millrace.pipeline.declared.check import graph as check_graph
from millrace.pipeline.declared.check.builtin_functions import is_builtin, other_names
from millrace.pipeline.declared.check.sinks import DELIVERIES, Defaults, read_sink
from millrace.pipeline.declared.check.sources import Surroundings, check_bootstrap, read_source
from millrace.pipeline.declared.language import python_code
from millrace.pipeline.declared.language.ddl import check_type
from millrace.pipeline.declared.language.document import Entry, Scalar, Table, describe
from millrace.pipeline.declared.language.fields import Fields
from millrace.pipeline.declared.language.mistakes import InvalidPipeline, Mark, Mistake, Mistakes
from millrace.pipeline.declared.language.model import Function, Pipeline, Sink, Source, Step, Trigger
from millrace.pipeline.declared.language.sql_file import read_sql
from millrace.pipeline.declared.language.sql_text import examine
from millrace.pipeline.declared.language.yaml_file import read_yaml

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "MILLRACE_BOOTSTRAP"
_TOP_KEYS: Final = (
    *("pipeline", "bootstrap.servers", "checkpoint", "trigger", "delivery", "spark", "packages"),
    *("functions", "sources", "steps", "sinks"),
)
_STEP_KEYS: Final = ("sql", "watermark", "deduplicate")
_FUNCTION_KEYS: Final = ("call", "returns", "kind")
_READERS: Final = {".yaml": read_yaml, ".yml": read_yaml, ".sql": read_sql}
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")
_VIEW_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")
_PACKAGE: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")
_CALL: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<attribute>[A-Za-z_]\w*)")


def load(
    path: Path, environment: Mapping[str, str] | None = None, *, bootstrap: str | None = None
) -> tuple[Pipeline, list[Mistake]]:
    """The pipeline in a file, with warnings; raises InvalidPipeline with all that is wrong."""
    pipeline, mistakes = examine_file(path, environment, bootstrap=bootstrap)
    if pipeline is None:
        raise InvalidPipeline(path, mistakes)
    return pipeline, mistakes


def examine_file(
    path: Path, environment: Mapping[str, str] | None = None, *, bootstrap: str | None = None
) -> tuple[Pipeline | None, list[Mistake]]:
    """The pipeline, or None if any of the mistakes is more than a warning.

    The first of these that is given names the servers: `bootstrap`, the file's `bootstrap.servers`, the
    variable MILLRACE_BOOTSTRAP, the default. Sources and sinks that name their own servers keep them."""
    mistakes = Mistakes()
    tree = _tree(path, mistakes)
    pipeline = None if tree is None else _Checker(path, tree, mistakes, environment).pipeline(bootstrap)
    return (None if mistakes.fatal else pipeline), mistakes.in_order()


def name_in(path: Path) -> str:
    """The pipeline's name alone, even if its file has mistakes: users can still look at a run and stop it."""
    mistakes = Mistakes()
    tree = _tree(path, mistakes)
    entry = None if tree is None else tree.entries.get("pipeline")
    if entry is None or not isinstance(entry.value, Scalar) or not _NAME.fullmatch(entry.value.text):
        mistakes.add(
            Mark(1), "the pipeline has no name", allowed="pipeline: NAME (in SQL: CREATE PIPELINE NAME)"
        )
        raise InvalidPipeline(path, mistakes.in_order())
    return entry.value.text


def _tree(path: Path, mistakes: Mistakes) -> Table | None:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        what = f"{path.name}: a pipeline's file has one of these endings"
        mistakes.add(Mark(1), what, allowed=", ".join(_READERS))
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        mistakes.add(Mark(1), f"cannot be read: {error.strerror}")
        return None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        mistakes.add(Mark(line), "not UTF-8 text")
        return None
    return reader(text, mistakes)


class _Checker:
    def __init__(
        self, path: Path, tree: Table, mistakes: Mistakes, environment: Mapping[str, str] | None
    ) -> None:
        self._path = path
        self._folder = path.absolute().parent
        self._mistakes = mistakes
        self._environment = environment
        self._top = Fields(tree, "pipeline", mistakes, environment)

    def pipeline(self, bootstrap: str | None) -> Pipeline | None:
        top = self._top
        top.only(_TOP_KEYS)
        around_us = os.environ if self._environment is None else self._environment
        in_file = top.text("bootstrap.servers")
        bootstrap = bootstrap or in_file or around_us.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
        check_bootstrap(bootstrap, top.mark_of("bootstrap.servers"), "pipeline", self._mistakes)
        around = Surroundings(self._folder, bootstrap, self._mistakes)
        defaults = Defaults(top.trigger(Trigger()), top.choice("delivery", DELIVERIES, "exactly-once"))
        functions = self._functions()
        sources = self._sources(around)
        steps = self._steps()
        sinks = self._sinks(around, defaults, sources, steps)
        declared = self._top.table("steps", "a table of steps by name")
        views = list(dict.fromkeys([*sources, *declared, *steps]))
        check_graph.check_names(sources, steps, self._mistakes)
        check_graph.check_tables(views, steps, self._mistakes)
        ordered = check_graph.in_order(steps, self._mistakes)
        checkpoint = top.text("checkpoint")
        name = self._name()
        pipeline = Pipeline(
            name=name,
            path=self._path,
            sources={key: value for key, value in sources.items() if value is not None},
            functions=functions,
            steps=ordered,
            sinks=sinks,
            checkpoint=None if checkpoint is None else around.location(checkpoint),
            spark=top.options("spark"),
            packages=self._packages(),
        )
        check_graph.check_graph(pipeline, self._mistakes)
        return pipeline

    def _name(self) -> str:
        name = self._top.text("pipeline")
        if name is None:
            if "pipeline" not in self._top:
                self._mistakes.add(
                    self._top.mark,
                    "the pipeline has no name",
                    allowed="pipeline: NAME (in SQL: CREATE PIPELINE NAME)",
                )
            return "unnamed"
        if not _NAME.fullmatch(name):
            what = f"pipeline: {name!r} is no name for a pipeline"
            allowed = "a letter, then letters, digits, '_' and '-', at most 80"
            self._mistakes.add(self._top.mark_of("pipeline"), what, allowed=allowed)
        return name

    def _packages(self) -> tuple[str, ...]:
        packages = self._top.texts("packages")
        for package in packages:
            if not _PACKAGE.fullmatch(package):
                what = f"pipeline: packages: {package!r} names no package"
                allowed = "GROUP:ARTIFACT:VERSION, such as org.postgresql:postgresql:42.7.14"
                self._mistakes.add(self._top.mark_of("packages"), what, allowed=allowed)
        return packages

    def _sources(self, around: Surroundings) -> dict[str, Source | None]:
        if not self._top.table("sources", "a table of sources by name") and "sources" not in self._top:
            self._mistakes.add(
                self._top.mark, "there are no sources", allowed="sources: (in SQL: CREATE SOURCE ...)"
            )
        # A source with mistakes is known all the same: the steps that read from it are not to blame.
        found: dict[str, Source | None] = dict.fromkeys(
            self._top.table("sources", "a table of sources by name")
        )
        for name, fields in self._parts("sources", "a table of sources by name"):
            self._check_view_name(name, fields)
            found[name] = read_source(name, fields, around)
        return found

    def _steps(self) -> dict[str, Step]:
        steps: dict[str, Step] = {}
        for name, entry in self._top.table("steps", "a table of steps by name").items():
            # The short form: NAME: SELECT ...
            is_short = isinstance(entry.value, Scalar) and entry.value.kind == "str"
            table = Table(entry.mark, {"sql": entry}) if is_short else entry.value
            fields = self._fields(f"steps.{name}", Entry(entry.mark, table))
            if fields is None:
                continue
            self._check_view_name(name, fields)
            fields.only(_STEP_KEYS)
            fields.require("sql", "sql: SELECT ...")
            step = self._step(name, fields)
            if step is not None:
                steps[name] = step
        return steps

    def _step(self, name: str, fields: Fields) -> Step | None:
        scalar, sql = fields.scalar("sql"), fields.text("sql")
        if scalar is None or sql is None:
            return None
        where = check_graph.label(name)
        query = examine(sql, scalar.text_mark, self._mistakes, where=where)
        if query is None:
            return None
        return Step(
            name=name,
            mark=fields.mark,
            sql=sql.rstrip().rstrip(";"),
            sql_mark=scalar.text_mark,
            query=query,
            watermark=fields.watermark(),
            deduplicate=fields.texts("deduplicate"),
        )

    def _sinks(
        self,
        around: Surroundings,
        defaults: Defaults,
        sources: Mapping[str, Source | None],
        steps: dict[str, Step],
    ) -> dict[str, Sink]:
        if "sinks" not in self._top:
            self._mistakes.add(
                self._top.mark, "there are no sinks", allowed="sinks: (in SQL: CREATE SINK ...)"
            )
        # A step whose query is broken is known all the same: its readers are not to blame.
        declared = [*sources, *self._top.table("steps", "a table of steps by name")]
        sinks: dict[str, Sink] = {}
        for name, fields in self._parts("sinks", "a table of sinks by name"):
            if not _NAME.fullmatch(name):
                allowed = "a letter, then letters, digits, '_' and '-', at most 80"
                self._mistakes.add(fields.mark, f"sinks: {name!r} is no name for a sink", allowed=allowed)
            view = self._view(name, fields, declared, steps)
            sink = read_sink(name, fields, view, around, defaults)
            if sink is not None:
                sinks[name] = sink
        return sinks

    def _view(self, name: str, fields: Fields, declared: list[str], steps: dict[str, Step]) -> str:
        """What a sink writes: a source or step by name, or a query of its own."""
        if ("from" in fields) == ("sql" in fields):
            what = "from and sql together" if "from" in fields else "nothing says which rows are written"
            allowed = "from: STEP or sql: SELECT ..."
            self._mistakes.add(fields.mark, f"{fields.where}: {what}", allowed=allowed)
        view = fields.text("from")
        if view is not None:
            check_graph.check_view(name, view, declared, fields.mark_of("from"), self._mistakes)
            return next((each for each in declared if each.casefold() == view.casefold()), view)
        if "sql" in fields:
            step = self._step(f"sink:{name}", fields.without("watermark", "deduplicate"))
            if step is not None:
                steps[step.name] = step
        return f"sink:{name}"

    def _functions(self) -> dict[str, Function]:
        functions: dict[str, Function] = {}
        for name, fields in self._parts("functions", "a table of functions by name"):
            self._check_view_name(name, fields)
            if is_builtin(name):
                what = (
                    f"{fields.where}: Spark has a function {name} of its own, which would be called instead"
                )
                self._mistakes.add(fields.mark, what, allowed=f"another name, such as {other_names(name)}")
            fields.only(_FUNCTION_KEYS)
            fields.require("call", "call: MODULE:FUNCTION")
            fields.require("returns", "returns: TYPE, such as string")
            call, returns = fields.text("call"), fields.scalar("returns")
            if returns is not None:
                check_type(returns.text, returns.text_mark, self._mistakes, where=f"{fields.where}.returns")
            if call is None:
                continue
            match = _CALL.fullmatch(call)
            if match is None:
                what = f"{fields.where}: call {call!r} names no function"
                allowed = "MODULE:FUNCTION, such as text_tools:clean"
                self._mistakes.add(fields.mark_of("call"), what, allowed=allowed)
                continue
            python_code.check_function(
                match["module"],
                match["attribute"],
                self._folder,
                fields.mark_of("call"),
                self._mistakes,
                where=fields.where,
            )
            functions[name] = Function(
                name=name,
                mark=fields.mark,
                module=match["module"],
                attribute=match["attribute"],
                returns=returns.text if returns is not None else "string",
                kind=fields.choice("kind", ("row", "pandas"), "row"),
            )
        return functions

    def _parts(self, section: str, what: str) -> list[tuple[str, Fields]]:
        parts = []
        for name, entry in self._top.table(section, what).items():
            fields = self._fields(f"{section}.{name}", entry)
            if fields is not None:
                parts.append((name, fields))
        return parts

    def _fields(self, where: str, entry: Entry) -> Fields | None:
        if not isinstance(entry.value, Table):
            if not isinstance(entry.value, Scalar) or entry.value.kind != "broken":
                what = f"{where} cannot be {describe(entry.value)}"
                self._mistakes.add(entry.mark, what, allowed="a table of keys")
            return None
        # Messages point at the name, not at the first key below it.
        return Fields(Table(entry.mark, entry.value.entries), where, self._mistakes, self._environment)

    def _check_view_name(self, name: str, fields: Fields) -> None:
        if not _VIEW_NAME.fullmatch(name):
            allowed = "a letter or '_', then letters, digits and '_', at most 80"
            self._mistakes.add(fields.mark, f"{fields.where}: {name!r} is no name for SQL", allowed=allowed)
