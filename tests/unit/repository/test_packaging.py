"""What a fresh checkout installs: every dependency has a range, an exact version inside it, and a reason."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tools.pin_constraints import normalized

ROOT = Path(__file__).resolve().parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(line) for lines in (PROJECT["dependencies"], *extras) for line in lines]


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_dependency_is_pinned_inside_its_range() -> None:
    versions = pinned()
    for requirement in requirements():
        version = versions[normalized(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_every_range_has_an_upper_end() -> None:
    for requirement in requirements():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators & {"<", "==", "~="}, f"{requirement} may bring any later version"


def test_every_dependency_has_its_reason_in_the_docs() -> None:
    explained = set(
        re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    )
    assert explained == {requirement.name for requirement in requirements()}


def test_constraints_are_sorted_and_exact() -> None:
    names = list(pinned())
    assert names == sorted(names)
