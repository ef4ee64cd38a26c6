"""`millrace doctor`: would a broker with these options work on this machine, and if not, what to do?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import click

from millrace.cli.broker_settings import broker_setting_options, load_config
from millrace.cli.doctor import checks
from millrace.cli.doctor.certificates import check_certificate
from millrace.cli.doctor.checks import Finding, Status
from millrace.cli.options import json_option
from millrace.cli.output import print_json, print_table
from millrace.core.errors import MillraceError


@click.command()
@broker_setting_options
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    data_dirs: tuple[Path, ...],
    listen: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check whether a broker started with the same options would work here.

    The exit code is 1 if a check fails; warnings alone are no failure. A broker that runs already holds its
    port and its data directory, so that those checks fail.
    """
    findings = [*_machine(), *_broker(data_dirs, listen, config_file, settings)]
    if as_json:
        for finding in findings:
            print_json(asdict(finding))
    else:
        rows = [(finding.check, finding.status.value, finding.detail, finding.fix) for finding in findings]
        print_table(("CHECK", "RESULT", "FOUND", "WHAT TO DO"), rows)
    if any(finding.status is Status.FAIL for finding in findings):
        ctx.exit(1)


COMMAND: Final = doctor


def _machine() -> Iterator[Finding]:
    yield checks.check_python()
    yield checks.check_versions()
    yield checks.check_event_loop()
    yield checks.check_open_files()
    yield checks.check_clock()


def _broker(
    data_dirs: tuple[Path, ...], listen: str | None, config_file: Path | None, settings: tuple[str, ...]
) -> Iterator[Finding]:
    try:
        config = load_config(data_dirs=data_dirs, listen=listen, config_file=config_file, settings=settings)
    except (MillraceError, OSError) as error:
        yield Finding(
            check="configuration",
            status=Status.FAIL,
            detail=str(error),
            fix="`millrace config docs` explains every setting",
        )
        return
    yield Finding(check="configuration", status=Status.OK, detail=str(config_file or "no file, defaults"))
    directories = config.log_dirs
    for directory in directories:
        for finding in checks.check_data_directory(Path(directory)):
            # With several directories, each line names its own.
            name = finding.check if len(directories) == 1 else f"{finding.check} {directory}"
            yield replace(finding, check=name)
    for listener in config.listeners:
        yield checks.check_port(listener.host, listener.port, what=f"listener {listener.name}")
        of_tls = check_certificate(config, listener)
        if of_tls is not None:
            yield of_tls
        # Without one, clients are told the address that they have dialled, which works by itself.
        advertised = config.advertised_listeners.get(listener.name)
        if advertised is not None:
            yield checks.check_advertised(*advertised, listen_port=listener.port)
        elif listener.host in ("127.0.0.1", "::1", "localhost"):
            yield _only_local(listener.name)
    if config.metrics_listener is not None:
        finding = checks.check_port(*config.metrics_listener, what="metrics listener")
        if finding.status is Status.FAIL and not config.is_set("metrics.listener"):
            # A broker whose operator did not ask for this port starts without it.
            finding = replace(finding, status=Status.WARN, fix="choose another metrics.listener")
        yield finding


def _only_local(name: str) -> Finding:
    return Finding(
        check=f"reach of {name}",
        status=Status.OK,
        detail="only clients on this machine: the listener is on the loopback interface",
    )
