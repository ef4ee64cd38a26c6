"""Progress of a run: a bar on a terminal, one line for each step elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows which step of a run is under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description:<42}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
            )
        self._task = self._bar.add_task("starting", total=None) if self._bar else None
        self._total = 0
        self._done = -1
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, total: int) -> None:
        self._total = total
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total)

    def step(self, description: str) -> None:
        """The step before this one is done, and this one begins."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=description, completed=self._done)
        else:
            self.log(f"[{self._done + 1}/{self._total}] {description}")

    def log(self, message: str) -> None:
        elapsed_s = int(time.monotonic() - self._started)
        self._console.print(
            f"{elapsed_s // 60:02}:{elapsed_s % 60:02} {message}", markup=False, highlight=False
        )
