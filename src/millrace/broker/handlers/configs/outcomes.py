"""What became of each part of a request, when the whole of it may fail as well."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from millrace.metadata.errors import MetadataError

T = TypeVar("T")


async def outcomes_of(work: Awaitable[list[T | MetadataError]], count: int) -> list[T | MetadataError]:
    """The outcome of each of `count` parts; a failure of the whole is the outcome of every part."""
    try:
        outcomes = await work
    except MetadataError as error:
        return [error] * count
    assert len(outcomes) == count, (len(outcomes), count)
    return outcomes
