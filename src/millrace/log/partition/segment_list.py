"""The segments of one log, and which of them holds an offset."""

from __future__ import annotations

from bisect import bisect_right

from millrace.log.segments.segment import Segment


class SegmentList:
    """Oldest first, without overlaps; only the last one, the active segment, is written.

    `all` is never changed in place: whoever kept it can tell by identity whether a segment came or went."""

    __slots__ = ("active", "all", "bases")

    active: Segment
    all: list[Segment]
    bases: list[int]
    """Their base offsets, for a search."""

    def __init__(self, segments: list[Segment]) -> None:
        self.replace(segments)

    def replace(self, segments: list[Segment]) -> None:
        """Let the log consist of these; the last one becomes active."""
        assert segments, "a log has at least one segment"
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.all)

    def number_at(self, offset: int) -> int:
        """The number of the segment whose range holds an offset; the first one's for offsets before it."""
        return max(bisect_right(self.bases, offset) - 1, 0)
