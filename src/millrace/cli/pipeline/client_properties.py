"""The properties of `--command-config`, as far as pipelines know them: how to reach secured brokers."""

from __future__ import annotations

from pathlib import Path

import click


def client_properties(path: Path | None) -> dict[str, str]:
    """What the file says; a name that pipelines do not know ends the command."""
    from millrace.client.security import SECURITY_OPTIONS
    from millrace.core.properties import parse_properties

    properties = {} if path is None else parse_properties(path.read_text(encoding="utf-8"))
    unknown = [name for name in properties if name not in SECURITY_OPTIONS]
    if unknown:
        known = ", ".join(SECURITY_OPTIONS)
        raise click.ClickException(f"{path}: pipelines know no {', '.join(unknown)}; known are {known}")
    return properties
