"""What `/metrics` says of compaction."""

from __future__ import annotations

from millrace.log.cleaning.cleaner import CleanerMetrics


def cleaner_counters(figures: CleanerMetrics) -> dict[str, tuple[str, float]]:
    return {
        "millrace_cleaner_passes": ("Compactions done.", figures.passes_count),
        "millrace_cleaner_aborted": ("Compactions broken off, to be tried again.", figures.aborted_count),
        "millrace_cleaner_worker_deaths": ("Worker processes lost.", figures.worker_deaths_count),
        "millrace_cleaner_failures": ("Compactions that failed.", figures.failures_count),
        "millrace_cleaner_bytes_read": ("Bytes read by compaction.", figures.bytes_read),
        "millrace_cleaner_bytes_written": ("Bytes written by compaction.", figures.bytes_written),
        "millrace_cleaner_records_removed": ("Records removed by compaction.", figures.records_removed),
    }
