"""Which rows of an archive a selection means, as conditions that let Spark skip days and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.pipeline.lake.ranges import AtOffset, AtOffsets, AtTime, Bound, Selection, Unbounded, day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def selected(rows: DataFrame, selection: Selection) -> DataFrame:
    """Records by their own timestamp, or by offset: from the start (with it) to the end (without it)."""
    return _bounded(_bounded(rows, selection.start, ">=", day=">="), selection.end, "<", day="<=")


def _bounded(rows: DataFrame, bound: Bound, sign: str, *, day: str) -> DataFrame:
    """The rows on one side of a bound; `day` compares days, of which the bound's own always counts."""
    match bound:
        case Unbounded():
            return rows
        case AtTime(moment):
            return rows.where(f"date {day} DATE'{day_of(moment)}' AND unix_millis(timestamp) {sign} {moment}")
        case AtOffset(offset):
            return rows.where(f"offset {sign} {offset}")
        case AtOffsets(offsets):
            return rows.where(" OR ".join(f"(partition = {p} AND offset {sign} {o})" for p, o in offsets))
