"""The ledger of an archive: which offsets of each partition are in the table.

It travels in the metadata of every commit that we make, so that records and their offset ranges become
visible together or not at all. Pure values: nothing here reads or writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millrace.pipeline.lake.errors import ForeignTable

MARK: Final = "millrace-archive"
APPLICATION_ID: Final = "millrace-archive"
"""The name under which Delta counts our commits: two writers of one number cannot both succeed."""

Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """`first` and `next` bound what was archived of each partition; `sequence` counts the appends."""

    topic: str
    topic_id: str
    """Empty where it is not known any more."""
    application_id: str = APPLICATION_ID
    sequence: int = 0
    compacted: int = 0
    first: Offsets = field(default_factory=dict)
    next: Offsets = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """How many partitions the topic was seen to have."""
        return max(self.next, default=-1) + 1

    def after(self, ranges: Mapping[int, tuple[int, int]]) -> Ledger:
        """The ledger once these ranges are in the table; each begins at its partition's `next` or later."""
        first, following = dict(self.first), dict(self.next)
        for partition, (start, end) in ranges.items():
            assert following.get(partition, start) <= start <= end, (partition, start, end)
            first.setdefault(partition, start)
            following[partition] = end
        return replace(self, sequence=self.sequence + 1, first=first, next=following)

    def when_compacted(self) -> Ledger:
        return replace(self, compacted=self.sequence)

    def to_json(self) -> str:
        document = {
            "kind": MARK,
            "version": 1,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "application_id": self.application_id,
            "sequence": self.sequence,
            "compacted": self.compacted,
            "first": {str(partition): offset for partition, offset in sorted(self.first.items())},
            "next": {str(partition): offset for partition, offset in sorted(self.next.items())},
        }
        return json.dumps(document, separators=(",", ":"))


def ledger_of(metadata: str | None) -> Ledger | None:
    """The ledger in a commit's metadata; None if the commit was not ours."""
    if not metadata or MARK not in metadata:
        return None
    try:
        document = json.loads(metadata)
    except ValueError:
        return None
    if not isinstance(document, dict) or document.get("kind") != MARK:
        return None
    if document.get("version") != 1:
        raise ForeignTable(
            f"the archive was written by a newer Millrace: its ledger has version {document.get('version')},"
            " this one reads version 1"
        )
    return Ledger(
        topic=str(document["topic"]),
        topic_id=str(document["topic_id"]),
        application_id=str(document["application_id"]),
        sequence=int(document["sequence"]),
        compacted=int(document["compacted"]),
        first=_offsets(document["first"]),
        next=_offsets(document["next"]),
    )


def _offsets(document: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in document.items()}
