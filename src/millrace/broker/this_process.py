"""What a broker asks of the process that it runs in, and tells of it."""

from __future__ import annotations

import contextlib
import resource


def process_figures() -> dict[str, tuple[str, float]]:
    """For the page of metrics: text and value by name."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"process_cpu_seconds": ("CPU time used.", usage.ru_utime + usage.ru_stime)}
    # Short of descriptors, the page is needed most: it goes without what takes one.
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        resident_bytes = int(file.read().split()[1]) * resource.getpagesize()
        figures["process_resident_memory_bytes"] = ("Resident memory.", resident_bytes)
    return figures


def raise_open_files_limit() -> None:
    """As many open files as the system allows: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
