"""The root of all expected failures. Each package adds its own; `broker.wire_errors` maps them once."""

from __future__ import annotations


class MillraceError(Exception):
    """An expected failure: its message says what was wrong and, where it helps, what is allowed."""
