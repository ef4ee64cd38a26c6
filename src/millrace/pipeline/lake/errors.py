"""Expected failures around archives: each names the table, topic or range that is wrong."""

from __future__ import annotations

from millrace.pipeline.errors import PipelineError


class ArchiveError(PipelineError):
    """An archive cannot be written or read as asked."""


class NoArchive(ArchiveError):
    """There is no archive of this topic at this place."""

    def __init__(self, topic: str, path: str) -> None:
        super().__init__(f"no archive of topic {topic} at {path} (`millrace pipeline archive` makes one)")


class ForeignTable(ArchiveError):
    """A table is there, but it is not an archive that this version can use."""


class RecordsLost(ArchiveError):
    """Records left the topic before they were archived, so that no reader can have all of them."""


class TopicRecreated(ArchiveError):
    """The topic of this name is another one than the archived: its offsets mean other records."""


class ConcurrentArchive(ArchiveError):
    """Somebody else writes to this archive; nothing of ours was committed."""


class ReplayError(PipelineError):
    """A replay cannot start or go on."""
