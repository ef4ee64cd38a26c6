"""Kafka's own DumpLogSegments as the judge of every file that a broker left on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.harness.java import JavaHost

_TOOL: Final = "org.apache.kafka.tools.DumpLogSegments"
_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
# Lines that only describe what is there. All others name a file or complain.
_DESCRIPTION: Final = (
    r"^(baseOffset: .*isvalid: true$|\| offset: |offset: |timestamp: |producerId: |version: 0 producerId: "
    r"|Log starting offset: |$)"
)
_EXPECTED: Final = ("Dumping ", "Starting offset: ")
_EMPTY_INDEX: Final = ".index is empty."
_GAPS: Final = "Non-consecutive offsets in "
_TIMESTAMPS: Final = "Found timestamp mismatch in "
_HEADLINES: Final = (_GAPS, _TIMESTAMPS, "Found out of order timestamp in ", "Mismatches in ")
_FILES_PER_CALL: Final = 200


@dataclass(slots=True)
class DiskReport:
    files_checked: int = 0
    records_bytes: int = 0
    complaints: list[str] = field(default_factory=list)


def dump_log_segments(java: JavaHost, partition_dirs: list[Path]) -> DiskReport:
    """Run DumpLogSegments (deep iteration, index checks) over all files of these partition directories."""
    report = DiskReport()
    files = [
        path
        for directory in partition_dirs
        for path in sorted(directory.iterdir())
        if path.suffix in _SUFFIXES and path.name[:20].isdigit()
    ]
    for start in range(0, len(files), _FILES_PER_CALL):
        chunk = files[start : start + _FILES_PER_CALL]
        words = ["--deep-iteration", "--files", ",".join(str(path) for path in chunk)]
        answer = java.tool(_TOOL, words, drop=_DESCRIPTION, deadline_s=300)
        lines = answer["stdout"].splitlines()
        dumped = sum(line.startswith("Dumping ") for line in lines)
        if answer["status"] != 0 or answer["thrown"] or dumped != len(chunk):
            report.complaints.append(
                f"{dumped} of {len(chunk)} files dumped, status {answer['status']}, "
                f"{answer['thrown']}: {answer['stderr'][-2000:]}"
            )
        # What is wrong in indexes and sequences comes at the end, on the error stream.
        report.complaints += _complaints(lines) + _complaints(answer["stderr"].splitlines())
        report.files_checked += len(chunk)
        report.records_bytes += sum(path.stat().st_size for path in chunk if path.suffix == ".log")
    return report


def _complaints(lines: list[str]) -> list[str]:
    """What the tool has against the files: a headline names one, the lines below it say what is wrong."""
    found = []
    headline = ""
    for line in lines:
        if line.startswith(_EXPECTED) or line.endswith(_EMPTY_INDEX) or not line:
            headline = line
        elif not line.startswith("  "):
            headline = line
            if not line.startswith(_HEADLINES):
                found.append(line)
        elif not _is_harmless(headline, line.strip()):
            found.append(f"{headline} {line}")
    return found


def _is_harmless(headline: str, detail: str) -> bool:
    """The tool knows nothing of compaction, and expects every file to begin at offset 0."""
    path = Path(headline.partition(" in ")[2].lstrip(":"))
    # What is stored once, or later, leaves the same gaps.
    is_compacted = "compact" in path.parent.name or "thinned" in path.parent.name
    if headline.startswith(_GAPS):
        before, _, after = detail.partition(" is followed by ")
        return is_compacted or (before == "-1" and int(after) == int(path.stem))
    # A batch that compaction emptied keeps the timestamp in its header; the tool looks at its records only.
    return is_compacted and headline.startswith(_TIMESTAMPS) and detail.endswith("log timestamp: -1")
