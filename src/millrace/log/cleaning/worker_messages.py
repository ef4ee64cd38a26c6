"""What the broker and its worker process say to each other: one JSON object a line, in both directions."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from millrace.core.errors import MillraceError
from millrace.log.cleaning.batch_filter import CompactionStats, LastOfProducer
from millrace.log.cleaning.cleaned_segment import CleanedFile
from millrace.log.cleaning.compaction import (
    CleanedGroup,
    CompactionJob,
    CompactionResult,
    SegmentToClean,
)


class JobFailed(MillraceError):
    """A job that the worker could not do: `kind` is the name of the error over there."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


class WorkerNotStarted(MillraceError):
    """The system gave no process: too many files are open, too many processes run, or memory is short."""


class WorkerDied(MillraceError):
    """The worker process ended in the middle of a job."""


def encode_job(job: CompactionJob) -> bytes:
    return _line(dataclasses.asdict(job))


def decode_job(line: bytes) -> CompactionJob:
    fields = json.loads(line)
    fields["segments"] = tuple(SegmentToClean(**segment) for segment in fields["segments"])
    fields["later_segments"] = tuple(fields["later_segments"])
    fields["compression_levels"] = {int(key): level for key, level in fields["compression_levels"].items()}
    fields["producers"] = {int(key): LastOfProducer(**last) for key, last in fields["producers"].items()}
    return CompactionJob(**fields)


def encode_result(result: CompactionResult) -> bytes:
    return _line({"result": dataclasses.asdict(result)})


def encode_failure(error: Exception) -> bytes:
    return _line({"error": type(error).__name__, "reason": str(error)})


def decode_reply(line: bytes) -> CompactionResult:
    """The result, or JobFailed."""
    reply = json.loads(line)
    if "error" in reply:
        raise JobFailed(reply["error"], reply["reason"])
    fields = reply["result"]
    return CompactionResult(
        groups=tuple(
            CleanedGroup(replaces=tuple(group["replaces"]), cleaned=CleanedFile(**group["cleaned"]))
            for group in fields["groups"]
        ),
        clean_offset=fields["clean_offset"],
        stats=CompactionStats(**fields["stats"]),
    )


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
