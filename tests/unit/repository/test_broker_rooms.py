"""What the import contracts of the broker leave out: types that point upwards, and settings by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import millrace
from millrace.broker.config.config import BrokerConfig
from millrace.metadata.config_definitions import BROKER_SETTINGS

BROKER = Path(millrace.__file__).parent / "broker"
READERS = ("config", "assembly/part_settings.py")
"""Whoever may know settings by their names. The parts get values."""
GETTERS = ("value", "integer", "number", "boolean", "text", "optional_text", "texts", "is_set")


def test_the_network_runs_without_the_handlers() -> None:
    """It names their types, and must not need them: they are handed to it."""
    program = "import sys, millrace.broker.network.server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    found = [name for name in loaded.stdout.split() if name.startswith("millrace.broker.")]
    assert "millrace.broker.network.connection" in found
    assert [name for name in found if not name.startswith("millrace.broker.network")] == []


def _names_read(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr=getter), args=[ast.Constant(value=str(name)), *_]):
                if getter in GETTERS and name in BROKER_SETTINGS:
                    yield f"{path.relative_to(BROKER)}:{node.lineno}: {name}"
            case _:
                pass


def test_settings_are_read_by_name_in_one_place() -> None:
    assert all(hasattr(BrokerConfig, getter) for getter in GETTERS)
    assert list(_names_read(BROKER / "assembly/part_settings.py")), "the search does not find what is there"
    found = [
        read
        for path in sorted(BROKER.rglob("*.py"))
        if not str(path.relative_to(BROKER)).startswith(READERS)
        for read in _names_read(path)
    ]
    assert not found, f"hand these over as values, from assembly/part_settings.py: {found}"
