"""A pipeline file as a tree of values that know their lines, whichever language it was written in.

Both readers make this tree and one checker reads it, so that YAML and SQL files mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from millrace.pipeline.declared.language.mistakes import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One value as written. `kind` is str, int, float, bool, null, or broken (its mistake is noted)."""

    text: str
    kind: str
    mark: Mark
    # Where the first line of the text itself is: in a YAML block it is the line after its `|`.
    text_mark: Mark


@dataclass(frozen=True, slots=True)
class Items:
    """A list of values."""

    mark: Mark
    values: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a table with its own place."""

    mark: Mark
    value: Node


@dataclass(frozen=True, slots=True)
class Table:
    """Keys with their values, in the order of the file."""

    mark: Mark
    entries: dict[str, Entry] = field(default_factory=dict)


Node: TypeAlias = Scalar | Items | Table


def describe(node: Node) -> str:
    """What a value is, in words for a message."""
    match node:
        case Table():
            return "a table of keys"
        case Items():
            return "a list"
        case Scalar(kind="null"):
            return "nothing"
        case Scalar(text=text):
            return repr(text if len(text) <= 40 else text[:37] + "...")
