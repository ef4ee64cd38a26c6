"""What the C library is told about memory."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from millrace.broker.assembly import allocator

BUFFERS = """
import resource, sys
from millrace.broker.assembly.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def turn():
    one = b"1" * 520_000
    other = one + b"2"
    del one, other
for _ in range(5):
    turn()
before = faults()
for _ in range(50):
    turn()
print(faults() - before)
"""

glibc_only = pytest.mark.skipif(allocator._find_mallopt() is None, reason="the C library is not glibc")


def faults_of_buffers(way: str) -> int:
    """How often the system had to give a page while large buffers came and went."""
    done = subprocess.run(
        [sys.executable, "-c", BUFFERS, way], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@glibc_only
def test_buffers_that_come_and_go_get_the_same_pages_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    pages = 520_000 // resource.getpagesize()
    assert faults_of_buffers("keep") < pages < faults_of_buffers("leave") / 10


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_come_first(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(allocator, "_find_mallopt", lambda: lambda _option, _value: pytest.fail("it was set"))
    monkeypatch.setenv(name, "1")
    assert not allocator.keep_freed_memory()


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_find_mallopt", lambda: None)
    assert not allocator.keep_freed_memory()


def test_what_cannot_be_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(allocator, "_find_mallopt", lambda: lambda _option, _value: 0)
    assert not allocator.keep_freed_memory()
