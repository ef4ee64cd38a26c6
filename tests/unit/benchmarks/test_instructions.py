"""What callgrind says of a process, and a real process that it counts."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from benchmarks.instructions import CALLGRIND, NotCounted, instructions, is_counted, total_of
from benchmarks.processes import cpu_seconds

STATUS = """PID 15666: python millrace serve

  Totals:    Ir
   Th 1  17,968
   Th 2  2,000
"""
TURNS = """
print("ready", flush=True)
for line in iter(input, "end"):
    for _ in range(int(line)): pass
    print("done", flush=True)
"""


def test_the_total_of_all_threads_is_told() -> None:
    assert total_of(STATUS) == 19_968
    with pytest.raises(NotCounted, match="callgrind tells no total: nothing"):
        total_of("nothing")


@pytest.mark.skipif(shutil.which(CALLGRIND[0]) is None, reason="no valgrind here")
def test_instructions_follow_the_work_of_a_process() -> None:
    command = [*CALLGRIND, sys.executable, "-c", TURNS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def work(turns: int) -> int:
            before = instructions(process.pid)
            print(turns, file=process.stdin, flush=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
            return instructions(process.pid) - before

        assert process.stdout.readline() == "ready\n"
        assert is_counted(process.pid)
        assert cpu_seconds(process.pid) == 0.0
        work(10)
        assert work(20_000) == pytest.approx(2 * work(10_000), rel=0.05)
        assert cpu_seconds(process.pid) == instructions(process.pid) / 1e9
        print("end", file=process.stdin, flush=True)
    assert not is_counted(process.pid)
