"""`millrace pipeline`: its subcommands by name, and the place where Spark's failures become one line.

A module beside this one holds several of them, in a dictionary `COMMANDS` by name. Modules are imported
when one of their commands is asked for, and import Spark only inside commands, so that help needs neither.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

import click

from millrace.cli.main import LazyGroup
from millrace.core.override import override


class PipelineGroup(LazyGroup):
    """Commands from modules with several each; an error of Spark ends as a sentence, not as a Java trace."""

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module = importlib.import_module(f"millrace.cli.pipeline.{self._modules[cmd_name][0]}")
        commands: Mapping[str, click.Command] = module.COMMANDS
        return commands[cmd_name]

    @override
    def invoke(self, ctx: click.Context) -> object:
        from millrace.pipeline.spark.spark_errors import explain, is_spark_error

        try:
            return super().invoke(ctx)
        except Exception as error:  # the edge of the command: only Spark's own are rewritten
            if not is_spark_error(error) or _wants_traceback(ctx):
                raise
            raise click.ClickException(explain(error)) from error


def _wants_traceback(ctx: click.Context) -> bool:
    return bool(ctx.find_root().params.get("debug"))


COMMAND: Final = PipelineGroup(
    name="pipeline",
    help="Work with topics on Spark: archive, replay, declared pipelines, analytics, capacity.",
    epilog="All but capacity need Spark (`pip install 'millrace[spark]'`) and Java 17 or newer.",
    modules={
        "archive": ("lake", "Keep topics in Delta tables."),
        "replay": ("lake", "Bring records of an archive back into topics."),
        "backfill": ("lake", "Read archive and live topic as one table."),
        "run": ("run", "Run a pipeline declared in a file."),
        "validate": ("run", "Find every mistake in a pipeline's file."),
        "explain": ("run", "Draw a pipeline's graph."),
        "status": ("run", "Show running pipelines and how far they are."),
        "stop": ("run", "Stop a running pipeline in order."),
        "analytics": ("analytics", "Measure topics: rates, sizes, latency, keys, lag."),
        "capacity": ("capacity", "Plan brokers, partitions, disk and network for a load."),
    },
    no_args_is_help=True,
)
