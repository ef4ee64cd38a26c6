"""How far the broker has come: starting, recovering its logs, ready, stopping. The page /readyz tells it."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.log.directories.survey import LoadProgress


@dataclass(slots=True)
class Readiness:
    """The phase in which the broker is, and how many logs it has loaded."""

    phase: str = "starting"
    logs_loaded: int = 0
    logs_total: int = 0

    @property
    def is_ready(self) -> bool:
        return self.phase == "ready"

    def recovering(self, progress: LoadProgress) -> None:
        self.phase = "recovering"
        self.logs_loaded = progress.logs_done
        self.logs_total = progress.logs_total
