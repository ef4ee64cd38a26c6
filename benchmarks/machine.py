"""What a figure was measured on: commit, machine, versions. Records no name and no address."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

import confluent_kafka

from tools.kafka_distribution import KAFKA_VERSION, PROJECT_ROOT, java_version

DIRTY_SUFFIX: Final = "-modified"


def commit() -> str:
    """The short commit, marked when the source differs from it."""
    name = _git("rev-parse", "--short=10", "HEAD")
    if name is None:
        return "unknown"
    # New results are no change of what was measured.
    is_dirty = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks", "tools")
    return name + DIRTY_SUFFIX if is_dirty else name


def describe() -> dict[str, str]:
    facts = {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{_memory_gib():.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "kafka": KAFKA_VERSION,
    }
    java = java_version()
    return {**facts, "java": java} if java else facts


def other_load() -> float:
    """How many processes wanted to run lately, as the kernel averages it over a minute."""
    return os.getloadavg()[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return float(pages * page_bytes) / 2**30


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
