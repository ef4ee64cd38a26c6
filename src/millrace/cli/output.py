"""What the command line prints: tables for people, JSON lines for programs, progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import click
import orjson

LOG_INTERVAL_S: Final = 5.0


class Progress(Protocol):
    """Shows how much of a command's work is done."""

    def advance(self, units: int, *, note: str = "") -> None:
        """This many more units are done; `note` says it in the command's own terms."""


def print_json(document: Any) -> None:
    sys.stdout.write(orjson.dumps(document).decode() + "\n")


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table with borders on a terminal; elsewhere aligned columns that `awk` and `grep` can read."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(headings, cells, right)
    else:
        _print_plain_table(headings, cells, right)


def log_line(text: str) -> None:
    """One line about the work itself, away from its results."""
    click.echo(text, err=True)


def fail_with(failures: Sequence[str]) -> None:
    """If there are any, print all of them and end the command as failed."""
    for failure in failures[:-1]:
        click.echo(f"Error: {failure}", err=True)
    if failures:
        raise click.ClickException(failures[-1])


@contextmanager
def progress(description: str, *, total: int | None) -> Iterator[Progress]:
    """A bar on a terminal, a log line every few seconds elsewhere. `total` is in the units of `advance`."""
    if sys.stderr.isatty():
        with _bar(description, total) as bar:
            yield bar
    else:
        yield _LogLines(description, total)


class _LogLines:
    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._last_line_at = time.monotonic()

    def advance(self, units: int, *, note: str = "") -> None:
        self._done += units
        now = time.monotonic()
        if now - self._last_line_at < LOG_INTERVAL_S:
            return
        self._last_line_at = now
        share = f" {100 * self._done / self._total:.0f}%" if self._total else ""
        log_line(f"{self._description}{share}{' ' + note if note else ''}")


@contextmanager
def _bar(description: str, total: int | None) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%" if total else ""),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(description, total=total, note="")

        class Bar:
            def advance(self, units: int, *, note: str = "") -> None:
                bars.update(task, advance=units, note=note)

        yield Bar()


def _print_rich_table(headings: Sequence[str], cells: list[list[str]], right: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, style=STATUS_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


STATUS_STYLES: Final = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


def _print_plain_table(headings: Sequence[str], cells: list[list[str]], right: Sequence[str]) -> None:
    table = [list(headings), *cells]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    for row in table:
        padded = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
