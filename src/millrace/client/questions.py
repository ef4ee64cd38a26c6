"""Questions that one end of a connection asks, one after the other, whatever the transport is."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Question(NamedTuple):
    """One request, to be answered before the next."""

    api_key: int
    version: int
    message: Any


class Work(NamedTuple):
    """A call that may take milliseconds or wait for the network: not for a loop's own thread."""

    run: Callable[[], Any]


Questions: TypeAlias = Generator[Question | Work, Any, T]
"""Yields one after the other, is sent the answer to each, and returns what they are asked for."""
