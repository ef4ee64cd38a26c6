"""What a broker asks of its process."""

from __future__ import annotations

import builtins
import resource

import pytest

from millrace.broker.this_process import process_figures, raise_open_files_limit


def test_processor_time_and_memory_are_told() -> None:
    figures = process_figures()
    assert figures["process_cpu_seconds"][1] > 0
    assert figures["process_resident_memory_bytes"][1] > 1_000_000


def test_without_a_descriptor_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(builtins, "open", refuse)
    assert list(process_figures()) == ["process_cpu_seconds"]


@pytest.mark.parametrize("soft, asked", [(64, [(128, 128)]), (128, [])])
def test_as_many_files_as_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, asked: list[tuple[int, int]]
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 128))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))
    raise_open_files_limit()
    assert found == asked
