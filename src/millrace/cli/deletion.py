"""Deletes by name, for `topic delete` and `group delete`: asks a person first, then reports on each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import click

from millrace.cli import clients
from millrace.cli.options import BrokerAddress
from millrace.cli.output import log_line

Explain = Callable[[str, clients.RequestFailed], str]


def delete_each(
    names: Iterable[str],
    delete: Callable[[list[str]], Mapping[str, Future[Any]]],
    address: BrokerAddress,
    *,
    contents: str,
    must_ask: bool,
    ignored_code: int | None,
    explain: Explain | None = None,
) -> None:
    """Delete each name with its `contents`; with `must_ask`, ask a person at a terminal first. The error
    `ignored_code` (there is no such thing) is no failure; `explain` says what other errors mean."""
    wanted = list(dict.fromkeys(names))
    if must_ask and sys.stdin.isatty():
        click.confirm(f"Delete {', '.join(wanted)} with all {contents}?", abort=True, err=True)

    def failure(name: str, error: clients.RequestFailed) -> str | None:
        if ignored_code is not None and clients.error_code(error) == ignored_code:
            log_line(f"{name}: is not there")
            return None
        return str(error) if explain is None else explain(name, error)

    clients.report_each(delete(wanted), address, done="deleted", failure=failure)
