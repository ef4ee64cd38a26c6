"""What `/metrics` says of the scrub, and of what lies in quarantine."""

from __future__ import annotations

from millrace.log.directories.log_directories import LogDirectories
from millrace.log.directories.scrubber import Scrubber, ScrubMetrics


def scrub_counters(figures: ScrubMetrics, directories: LogDirectories) -> dict[str, tuple[str, float]]:
    return {
        "millrace_scrub_logs": ("Logs that were gone through for damage.", figures.logs_count),
        "millrace_scrub_bytes_read": ("Bytes read to look for damage.", figures.bytes_read),
        "millrace_scrub_damaged_ranges": ("Damaged ranges that the scrub found.", figures.damaged_count),
        "millrace_scrub_indexes_rebuilt": (
            "Indexes that the scrub found wrong and made again.",
            figures.rebuilt_count,
        ),
        "millrace_scrub_failures": ("Logs that could not be gone through.", figures.failures_count),
        "millrace_quarantines": (
            "How often something went into quarantine while the broker ran, whoever found it.",
            sum(directory.quarantined_count for directory in directories.all),
        ),
    }


def scrub_gauges(scrubber: Scrubber, directories: LogDirectories) -> dict[str, tuple[str, float]]:
    return {
        "millrace_scrub_progress": (
            "How much is done of the log that is gone through for damage now, from 0 to 1.",
            scrubber.metrics.progress,
        ),
        "millrace_quarantined_ranges": (
            "Ranges of records that are damaged or missing and are not served.",
            sum(len(segment.damage) for log in directories.all_logs() for segment in log.segments),
        ),
    }
