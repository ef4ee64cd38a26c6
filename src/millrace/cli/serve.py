"""`millrace serve`: read the options, then run a broker until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from millrace.cli.broker_settings import broker_setting_options, load_config


@click.command(epilog="`millrace config docs` explains every setting.")
@broker_setting_options
def serve(
    data_dirs: tuple[Path, ...], listen: str | None, config_file: Path | None, settings: tuple[str, ...]
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings come from the file, from --set, and from variables such as MILLRACE_LOG_RETENTION_MS; the last
    of these that names a setting wins.
    """
    config = load_config(data_dirs=data_dirs, listen=listen, config_file=config_file, settings=settings)

    from millrace.broker.app import run

    run(config)


COMMAND: Final = serve
