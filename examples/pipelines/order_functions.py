"""Functions that the pipelines in this folder call from SQL, by `order_functions:NAME`."""

from __future__ import annotations


def tidy_name(name: str | None) -> str | None:
    """`  ada lovelace ` becomes `Ada Lovelace`."""
    return None if name is None else " ".join(name.split()).title()
