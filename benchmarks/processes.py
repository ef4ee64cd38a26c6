"""CPU time and memory of a broker with all its child processes, and bounded runs of load generators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.instructions import instructions, is_counted
from tools.kafka_distribution import PROJECT_ROOT

INSTRUCTIONS_PER_S: Final = 1e9
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Positions after the command name in /proc/<pid>/stat.
_PARENT, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 1, 11, 12, 13, 14


# Most generators keep the memory that they have. Otherwise glibc gives every buffer of a megabyte back to the
# kernel and gets it again page by page: that took a librdkafka consumer half of its time, with every broker.
# No user sets this, so `plain-consume` measures without it, too.
KEEPS_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


class GeneratorFailed(Exception):
    """A load generator ended with an error or took too long; the message holds its last words."""


def cpu_seconds(pid: int) -> float:
    """CPU time of `pid`, of its living descendants, and of those it has waited for.

    Of a process under callgrind: its instructions, a billion of them as a second."""
    if is_counted(pid):
        return instructions(pid) / INSTRUCTIONS_PER_S
    return sum(sum(_stat(each)[_USER : _CHILDREN_SYSTEM + 1]) for each in process_tree(pid)) / TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Resident memory of `pid` and its descendants in MB (10^6 bytes)."""
    return sum(_resident_bytes(each) for each in process_tree(pid)) / 1e6


def process_tree(pid: int) -> list[int]:
    """`pid` and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat:
                children.setdefault(stat[_PARENT], []).append(int(entry.name))
    tree = [pid]
    for parent in tree:
        tree.extend(children.get(parent, ()))
    return tree


def run_generator(
    name: str, arguments: Mapping[str, Any], *, timeout_s: float, keeps_memory: bool = True
) -> dict[str, float]:
    """Run `benchmarks.generators.<name>` in a process of its own and return what it measured."""
    command = [sys.executable, "-m", f"benchmarks.generators.{name}", json.dumps(dict(arguments))]
    output = run_bounded(command, timeout_s=timeout_s, environment=KEEPS_MEMORY if keeps_memory else {})
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def run_bounded(
    command: list[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    may_be_silent: bool = False,
) -> str:
    """The standard output of `command`; it is ended and reaped if it fails to end in time."""
    try:
        answer = subprocess.run(
            command,
            cwd=PROJECT_ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GeneratorFailed(f"{_name(command)}: no end within {timeout_s:.0f} s") from error
    if answer.returncode != 0 or not (may_be_silent or answer.stdout.strip()):
        last_words = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
        raise GeneratorFailed(f"{_name(command)}: {' '.join(last_words)}")
    return answer.stdout


def _name(command: list[str]) -> str:
    """The Python module or Java class that a command runs."""
    return next((part for part in command if part.startswith(("benchmarks.", "org."))), command[0])


def _stat(pid: int) -> list[int]:
    """The numbers after the command name, or nothing if the process has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name may hold blanks and brackets; the state letter after it is kept as its code.
    state, *numbers = text[text.rindex(")") + 2 :].split()
    return [ord(state), *(int(number) for number in numbers)]


def _resident_bytes(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
