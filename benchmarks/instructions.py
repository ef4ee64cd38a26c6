"""How many instructions a process has run, counted by callgrind: no neighbour makes them more.

A broker under callgrind is fifty times slower and does the same work: what it needs for a fixed number of
requests mostly moves by a hundredth or two. Only the process's own instructions are counted, none of the
kernel's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

CALLGRIND: Final = (
    "valgrind",
    "--quiet",
    "--tool=callgrind",
    # Nobody wants to know what the start of an interpreter costs: the first reading switches it on.
    "--instr-atstart=no",
    # The command may begin with `env`, and a script begins with its interpreter.
    "--trace-children=yes",
    "--callgrind-out-file=/dev/null",
)
"""What a broker's command begins with."""
CONTROL: Final = "callgrind_control"
_ANSWER_S: Final = 60.0
_IS_OFF: Final = "instrumentation is switched off"
_TOTAL: Final = re.compile(r"^\s*Th \d+\s+([\d,]+)", re.MULTILINE)


class NotCounted(Exception):
    """Callgrind is not there or does not answer."""


def require_callgrind() -> None:
    missing = [name for name in (CALLGRIND[0], CONTROL) if shutil.which(name) is None]
    if missing:
        raise NotCounted(f"instructions are counted by valgrind's callgrind: no {', '.join(missing)} here")


def is_counted(pid: int) -> bool:
    """Whether the process runs under callgrind."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("callgrind")
    except OSError:
        return False


def instructions(pid: int) -> int:
    """How many instructions a process under callgrind has run since this was asked first."""
    status = _control(pid, "-e")
    if _IS_OFF in status:
        _control(pid, "--instr=on")
        return 0
    return total_of(status)


def total_of(status: str) -> int:
    """The sum over all threads, from what `callgrind_control` prints."""
    if "Totals:" not in status:
        raise NotCounted(f"callgrind tells no total: {status.strip()}")
    # A thread that has run nothing yet is not named.
    return sum(int(each.replace(",", "")) for each in _TOTAL.findall(status))


def _control(pid: int, word: str) -> str:
    try:
        answer = subprocess.run(
            [CONTROL, word, str(pid)], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotCounted(f"{CONTROL} {word} {pid}: {error}") from error
    return answer.stdout
