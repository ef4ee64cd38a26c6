"""Lets the epochs of transactional producers run out after a few transactions instead of tens of thousands:
what happens then is the same (F17)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.transactions import machine, transaction


@contextmanager
def few_epochs(epochs_max: int | None) -> Iterator[None]:
    """While it lasts, `epochs_max` stands for 32767."""
    before = transaction.EPOCH_MAX
    if epochs_max is not None:
        _set(epochs_max)
    try:
        yield
    finally:
        _set(before)


def _set(epoch_max: int) -> None:
    # Other modules import these constants by name, so each place that has one is set.
    setattr(transaction, "EPOCH_MAX", epoch_max)  # noqa: B010
    setattr(transaction, "CLIENT_EPOCH_MAX", epoch_max - 1)  # noqa: B010
    setattr(machine, "CLIENT_EPOCH_MAX", epoch_max - 1)  # noqa: B010
