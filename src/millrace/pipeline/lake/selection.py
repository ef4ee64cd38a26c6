"""Which rows of an archive a selection means, as conditions that let Spark skip days and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.pipeline.lake.ranges import AtOffset, AtOffsets, AtTime, Bound, Selection, Unbounded, day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def selected(rows: DataFrame, selection: Selection) -> DataFrame:
    """Records by their own timestamp, or by offset: from the start (with it) to the end (without it)."""
    rows = _from(rows, selection.start)
    return _until(rows, selection.end)


def _from(rows: DataFrame, bound: Bound) -> DataFrame:
    match bound:
        case Unbounded():
            return rows
        case AtTime(moment):
            return rows.where(f"date >= DATE'{day_of(moment)}' AND unix_millis(timestamp) >= {moment}")
        case AtOffset(offset):
            return rows.where(f"offset >= {offset}")
        case AtOffsets(offsets):
            return rows.where(" OR ".join(f"(partition = {p} AND offset >= {o})" for p, o in offsets))


def _until(rows: DataFrame, bound: Bound) -> DataFrame:
    match bound:
        case Unbounded():
            return rows
        case AtTime(moment):
            return rows.where(f"date <= DATE'{day_of(moment)}' AND unix_millis(timestamp) < {moment}")
        case AtOffset(offset):
            return rows.where(f"offset < {offset}")
        case AtOffsets(offsets):
            return rows.where(" OR ".join(f"(partition = {p} AND offset < {o})" for p, o in offsets))
