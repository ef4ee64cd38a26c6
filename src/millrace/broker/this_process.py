"""What a broker asks of the process that it runs in, and tells of it."""

from __future__ import annotations

import contextlib
import resource


def process_figures() -> dict[str, tuple[str, float]]:
    """What the page of metrics tells of this process: text and value by name."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"process_cpu_seconds": ("CPU time used.", usage.ru_utime + usage.ru_stime)}
    # The page is needed most when descriptors run out: then it goes without the figure that takes one.
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        resident_bytes = int(file.read().split()[1]) * resource.getpagesize()
        figures["process_resident_memory_bytes"] = ("Resident memory.", resident_bytes)
    return figures


def raise_open_files_limit() -> None:
    """Allow the process as many open files as the system does: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
