"""`millrace pipeline run|validate|explain|status|stop`: pipelines declared in one YAML or SQL file."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.cli.options import json_option
from millrace.cli.output import log_line, print_json, print_table
from millrace.cli.pipeline.spark_options import spark_options, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.pipeline.declared.language.mistakes import Mistake
    from millrace.pipeline.declared.language.model import Pipeline
    from millrace.pipeline.declared.run.state import StateDirectory

EXIT_FAILED: Final = 1
_NUMBERS: Final = ("BATCH", "ROWS", "ROWS/S", "LAG", "LEFT")

_FILE: Final = click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
_STATE: Final = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the state of pipelines is kept [.millrace beside the file].",
)


_BOOTSTRAP: Final = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT[,...]",
    help="Brokers, instead of the file's bootstrap.servers. If neither names any: MILLRACE_BOOTSTRAP, then"
    " 127.0.0.1:9092.",
)


@click.command()
@_FILE
@_BOOTSTRAP
@click.option("--once", is_flag=True, help="Process what is there now, then end (trigger available-now).")
@spark_options
@_STATE
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve Prometheus metrics at http://HOST:PORT/metrics (0 picks a free port).",
)
@click.option(
    "--stop-timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a stop waits for batches to end.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    metavar="N",
    help="How often in a row a failing query is started again, with growing pauses; the others go on.",
)
@click.option(
    "--outage-timeout",
    "outage_timeout_s",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for brokers that do not answer.",
)
@click.option(
    "--trace", is_flag=True, help="Show Spark's traces of errors; they are in the state directory otherwise."
)
def run(
    file: Path,
    bootstrap: str | None,
    once: bool,
    state_dir: Path | None,
    metrics: str | None,
    stop_timeout: float,
    retries: int,
    outage_timeout_s: float,
    trace: bool,
    **options: Any,
) -> int:
    """Run the pipeline declared in FILE until it ends or is stopped.

    A run goes on where the last one ended, exactly once: progress is in the checkpoints.
    Ctrl-C, SIGTERM and `millrace pipeline stop` let each query end its batch first. A query that fails is
    started again while the others go on; one that still fails at the end makes the exit code 1.
    """
    pipeline = _load(file, bootstrap)

    from millrace.pipeline.declared.run.retries import RetryLimits
    from millrace.pipeline.declared.run.runner import Runner
    from millrace.pipeline.declared.run.state import state_directory
    from millrace.pipeline.progress import ProgressBoard, metrics_served, shown

    master = options["master"]
    state = state_directory(file, pipeline.name, state_dir)
    board = ProgressBoard(pipeline.name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(state.held(pipeline.name))
        runner = Runner(
            pipeline=pipeline,
            state=state,
            board=board,
            say=log_line,
            master=master,
            once=once,
            stop_timeout_s=stop_timeout,
            limits=RetryLimits(retries=retries, outage_timeout_s=outage_timeout_s),
            shows_traces=trace,
        )
        if metrics is not None:
            host, port = _host_port(metrics)
            runner.metrics_url = _metrics_url(
                host, stack.enter_context(metrics_served(board, host=host, port=port))
            )
            log_line(f"metrics at {runner.metrics_url}")
        log_line(f"{pipeline.name}: starting Spark ({master}); state in {state.path}")
        stack.enter_context(shown(board))
        outcome = runner.run(lambda: stack.enter_context(_session(pipeline, options)))
    log_line(f"{pipeline.name}: {outcome}")
    return 0


@click.command()
@_FILE
@_BOOTSTRAP
@click.option("--deep", is_flag=True, help="Ask Spark too: parse and analyse every query, read no data.")
@spark_options
@json_option
def validate(file: Path, bootstrap: str | None, deep: bool, as_json: bool, **options: Any) -> int:
    """Say everything that is wrong in FILE, each with its line."""
    from millrace.pipeline.declared.check.check import examine_file

    pipeline, mistakes = examine_file(file, bootstrap=bootstrap)
    if pipeline is not None and deep:
        from millrace.pipeline.declared.check.deep import examine_deeply

        with _session(pipeline, options) as spark, tempfile.TemporaryDirectory() as scratch:
            mistakes = mistakes + examine_deeply(spark, pipeline, Path(scratch))
    _print_mistakes(file, mistakes, as_json)
    wrong = sum(not mistake.warning for mistake in mistakes)
    if wrong:
        log_line(f"{file}: {wrong} mistake{'' if wrong == 1 else 's'}")
        return EXIT_FAILED
    assert pipeline is not None, mistakes
    if not as_json:
        click.echo(
            f"{file}: {pipeline.name} is fine: {_count(len(pipeline.sources), 'source')},"
            f" {_count(len(pipeline.steps), 'step')}, {_count(len(pipeline.sinks), 'sink')}"
        )
    return 0


@click.command()
@_FILE
@_BOOTSTRAP
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg|.html",
    help="Draw into a file instead.",
)
@click.option(
    "--plan",
    type=click.Choice(("simple", "extended", "formatted")),
    help="Also show Spark's plan for each sink.",
)
@spark_options
def explain(file: Path, bootstrap: str | None, output: Path | None, plan: str | None, **options: Any) -> None:
    """Draw the graph of the pipeline declared in FILE."""
    from millrace.pipeline.declared.language import draw

    pipeline = _load(file, bootstrap)
    if output is not None:
        if output.suffix.lower() not in (".svg", ".html", ".htm"):
            raise click.BadParameter(f"{output.name}: .svg or .html", param_hint="'--output'")
        draw.write_drawing(pipeline, output)
        log_line(f"drawn into {output}")
    else:
        click.echo(draw.draw_text(pipeline))
    if plan is not None:
        from millrace.pipeline.declared.check.deep import plans

        with _session(pipeline, options) as spark, tempfile.TemporaryDirectory() as scratch:
            for name, text in plans(spark, pipeline, Path(scratch), plan).items():
                click.echo(f"\n== {name} ==\n{text.rstrip()}")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False, path_type=Path), metavar="[FILE]...")
@_STATE
@json_option
def status(files: tuple[Path, ...], state_dir: Path | None, as_json: bool) -> int:
    """Show how far pipelines are: those of the FILEs, or all that have run in this folder."""
    from millrace.pipeline.declared.run.state import STATE_FOLDER, state_directories

    if files:
        directories = [_state_of(file, state_dir) for file in files]
    else:
        directories = state_directories(state_dir or Path(STATE_FOLDER))
    documents = [(directory, directory.status()) for directory in directories]
    for position, (directory, document) in enumerate(documents):
        if document is None:
            log_line(f"{directory.path.name}: has never run here ({directory.path})")
        elif as_json:
            print_json(document)
        else:
            if position:
                click.echo()
            _print_status(document)
    if not documents:
        log_line(f"no pipeline has run here: {state_dir or Path(STATE_FOLDER)} holds none")
    return 0 if documents and all(document is not None for _, document in documents) else EXIT_FAILED


@click.command()
@_FILE
@_STATE
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=330.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the end.",
)
@click.option("--kill", is_flag=True, help="Do not wait for batches: end the process at once.")
def stop(file: Path, state_dir: Path | None, timeout_s: float, kill: bool) -> int:
    """Stop the pipeline of FILE after the batches that are under way."""
    state = _state_of(file, state_dir)
    if not state.is_held():
        log_line(f"{state.path.name}: does not run")
        return 0
    document = state.status() or {}
    if kill:
        os.kill(int(document["pid"]), signal.SIGKILL)
    else:
        state.ask_to_stop()
    if not state.wait_until_free(timeout_s):
        log_line(f"{state.path.name}: still runs after {timeout_s:g} s, as process {document.get('pid')}")
        return EXIT_FAILED
    click.echo(f"{'killed' if kill else 'stopped'} {state.path.name}")
    return 0


COMMANDS: Final = {"run": run, "validate": validate, "explain": explain, "status": status, "stop": stop}


def _load(file: Path, bootstrap: str | None = None) -> Pipeline:
    from millrace.pipeline.declared.check.check import load
    from millrace.pipeline.declared.language.mistakes import line_of

    pipeline, warnings = load(file, bootstrap=bootstrap)
    for warning in warnings:
        log_line(line_of(file, warning))
    return pipeline


def _state_of(file: Path, root: Path | None) -> StateDirectory:
    from millrace.pipeline.declared.check.check import name_in
    from millrace.pipeline.declared.run.state import state_directory

    return state_directory(file, name_in(file), root)


@contextlib.contextmanager
def _session(pipeline: Pipeline, options: dict[str, Any]) -> Iterator[SparkSession]:
    """A session of the pipeline's own, with the jars that its parts need; stopped at the end."""
    from millrace.pipeline.declared.check.needs import locations_of, needs_delta, packages_of
    from millrace.pipeline.spark.session import make_session

    spark = make_session(
        app_name=f"millrace {pipeline.name}",
        master=options["master"],
        delta=needs_delta(pipeline),
        config=spark_settings(options, pipeline.spark),
        locations=locations_of(pipeline),
        packages=packages_of(pipeline),
    )
    try:
        yield spark
    finally:
        spark.stop()


def _print_mistakes(file: Path, mistakes: list[Mistake], as_json: bool) -> None:
    from millrace.pipeline.declared.language.mistakes import line_of

    for mistake in mistakes:
        if as_json:
            print_json(
                {
                    "file": str(file),
                    "line": mistake.mark.line,
                    "column": mistake.mark.column,
                    "kind": "warning" if mistake.warning else "mistake",
                    "what": mistake.what,
                    "allowed": mistake.allowed or None,
                    "meant": mistake.meant or None,
                }
            )
        else:
            click.echo(line_of(file, mistake))


def _print_status(document: dict[str, Any]) -> None:
    from millrace.pipeline.progress import format_seconds

    head = f"{document['pipeline']}: {document['state']}"
    if document["state"] in ("starting", "running", "stopping"):
        head += f" as process {document['pid']}"
    click.echo(f"{head}, began {document['began']}, last heard of {document['updated']}")
    if document["error"]:
        click.echo(f"  {document['error']}")
    rows = [
        (
            query["name"],
            query["state"],
            query["batch"],
            f"{query['rows']:,}",
            f"{query['rows_per_second']:,.0f}",
            None if query["lag"] is None else f"{query['lag']:,}",
            None if query["left_s"] is None else format_seconds(query["left_s"]),
        )
        for query in document["queries"]
    ]
    if rows:
        print_table(("QUERY", "STATE", *_NUMBERS), rows, right=_NUMBERS)


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not of the form [HOST:]PORT", param_hint="'--metrics'")
    return host.strip("[]") or "127.0.0.1", int(port)


def _metrics_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
