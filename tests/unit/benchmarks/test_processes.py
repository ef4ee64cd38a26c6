"""CPU and memory figures must cover a broker's child processes, and no generator may run on for ever."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.processes import GeneratorFailed, cpu_seconds, process_tree, resident_mb, run_bounded

BUSY_THEN_WAITING = """
import time
while time.process_time() < 0.2: pass
print("busy no more", flush=True)
input()
"""
PARENT = f"""
import subprocess, sys
command = [sys.executable, "-c", {BUSY_THEN_WAITING!r}]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
child.communicate(b"end")
"""


def test_a_living_child_counts_as_part_of_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert process_tree(parent.pid) == [parent.pid, child]
        assert cpu_seconds(parent.pid) >= 0.19
        assert resident_mb(parent.pid) > resident_mb(child) > 1
        assert parent.stdin is not None
        parent.stdin.close()


def test_a_process_that_has_gone_has_no_cpu_time_and_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert cpu_seconds(process.pid) == 0
    assert resident_mb(process.pid) == 0


def test_our_own_memory_is_plausible() -> None:
    assert 5 < resident_mb(os.getpid()) < 5_000


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(GeneratorFailed, match="no end within"):
        run_bounded([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.3)


def test_a_failing_command_is_reported_by_its_last_words() -> None:
    with pytest.raises(GeneratorFailed, match="out of luck"):
        run_bounded([sys.executable, "-c", "raise SystemExit('out of luck')"], timeout_s=30)
