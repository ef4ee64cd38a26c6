"""Lets index entries go to their files early, so that runs also meet what follows the write of a batch.

A real broker collects 64 KiB of entries before it stores them behind a batch. No simulated segment has so
many, and no run would ever see what a refused write means there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millrace.log.segments import segment, sparse_index

STORE_AT_BYTES: Final = 8


@contextmanager
def small_tails() -> Iterator[None]:
    setattr(segment, "STORE_AT_BYTES", STORE_AT_BYTES)  # noqa: B010 - it is final for everybody else
    try:
        yield
    finally:
        setattr(segment, "STORE_AT_BYTES", sparse_index.STORE_AT_BYTES)  # noqa: B010
