"""Write constraints.txt: the exact version of everything in .venv, so that every checkout installs the same.

Run it through `make constraints` after changing a dependency in pyproject.toml.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Final

CONSTRAINTS: Final = Path(__file__).parent.parent / "constraints.txt"
HEADER: Final = """\
# Exact versions of every package that Millrace runs, tests and measures with.
# Ranges are in pyproject.toml; `make constraints` writes this file from .venv.
"""
NOT_OURS_TO_PIN: Final = {"millrace", "pip", "setuptools", "wheel"}


def normalized(name: str) -> str:
    """The one spelling of a package's name that pip compares."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_versions() -> dict[str, str]:
    versions = {normalized(dist.name): dist.version for dist in importlib.metadata.distributions()}
    return {name: version for name, version in versions.items() if name not in NOT_OURS_TO_PIN}


def render() -> str:
    versions = installed_versions()
    return HEADER + "".join(f"{name}=={versions[name]}\n" for name in sorted(versions))


if __name__ == "__main__":
    CONSTRAINTS.write_text(render())
    print(f"wrote {CONSTRAINTS.name}")
