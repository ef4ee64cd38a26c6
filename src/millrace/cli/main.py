"""The `millrace` command: its subcommands by name, and the one place where errors become exit codes.

Subcommands are imported when they are asked for: `millrace serve` must not pay for a client library.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

import click

from millrace.core.errors import MillraceError
from millrace.core.override import override

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, imported on first use."""

    def __init__(self, *, modules: dict[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]  # click's own keyword arguments, passed on
        self._modules: Final = modules

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module = importlib.import_module(f"millrace.cli.{self._modules[cmd_name][0]}")
        command = module.COMMAND
        assert isinstance(command, click.Command), command
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._modules.items()])

    @override
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # `millrace consume | head`: the reader has seen enough, which is no failure. click would say 1.
            _forget_output()
            raise click.exceptions.Exit(0) from None


def _forget_output() -> None:
    """Send further output nowhere: Python flushes once more at exit, and must find an open file."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"millrace {version('millrace')}")
        ctx.exit()


CLI: Final = LazyGroup(
    name="millrace",
    help="A message queue that speaks the Apache Kafka protocol: run a broker, and work with one.",
    epilog="`millrace COMMAND --help` explains each command. Exit codes: 0 done, 1 failed, 2 wrong usage.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    modules={
        "serve": ("serve", "Run a broker."),
        "secure": ("secure.commands", "Make certificates, users and settings for secured brokers."),
        "cluster": ("cluster.commands", "Run a cluster on this machine, for development."),
        "reassign": ("reassign.commands", "Move replicas between brokers: even out, drain, fill."),
        "broker": ("cluster.broker", "Take brokers out of a cluster."),
        "log-dirs": ("log_dirs", "Show the data directories of brokers and what moves between them."),
        "topic": ("topic", "Create, list, describe, alter and delete topics."),
        "group": ("group.commands", "List, describe, reset and delete consumer groups."),
        "queue": ("queue.commands", "Look at queues, empty and pause them, bring back dead letters."),
        "delayed": ("delayed.commands", "List, cancel and replace delayed messages."),
        "transaction": ("transaction", "List, describe and abort transactions, and find those that hang."),
        "produce": ("messages.produce", "Send messages from standard input or files."),
        "consume": ("messages.consume", "Read messages and print them."),
        "acl": ("access.acl", "List, add, remove and explain permissions."),
        "role": ("access.role", "Create roles and give them to users and groups."),
        "user": ("access.user", "Add and delete users, and change passwords."),
        "quota": ("access.quota", "Limit what users, client ids, addresses and tenants take."),
        "tenant": ("access.tenant", "Create, change and delete tenants."),
        "token": ("access.token", "Create, list, renew and end delegation tokens."),
        "config": ("config", "Explain, show and change settings."),
        "pipeline": ("pipeline.commands", "Archive, replay, transform and measure topics on Spark."),
        "log": ("log", "Look into the log files of a data directory."),
        "doctor": ("doctor.commands", "Check whether a broker can run here."),
    },
    params=[
        click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ],
    callback=lambda debug: None,
    no_args_is_help=True,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    # We accept it behind a subcommand too: people add it to a command that has just failed.
    words = [word for word in words if word != "--debug"]
    try:
        outcome = CLI.main(args=words, prog_name="millrace", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        sys.exit(0)
    except Exception as error:  # the edge of the process: one line, or the traceback on request
        if debug:
            raise
        click.echo(f"Error: {_explain(error)}", err=True)
        sys.exit(EXIT_FAILED)
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _explain(error: Exception) -> str:
    match error:
        case MillraceError():
            return str(error)
        case OSError(strerror=str(reason), filename=str(name)):
            return f"{name}: {reason}"
        case OSError():
            return str(error)
        case _:
            return f"{type(error).__name__}: {error} (`millrace --debug ...` shows where)"
