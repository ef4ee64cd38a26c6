"""The properties of `--command-config`, as far as pipelines know them: how to reach secured brokers."""

from __future__ import annotations

from pathlib import Path


def client_properties(path: Path | None) -> dict[str, str]:
    """The options of security that the file gives, as the Spark source and sink take them. A name that no
    client knows ends the command; what concerns other clients alone is left out."""
    from millrace.cli.command_config import read_properties

    return {} if path is None else read_properties(path).security_options()
