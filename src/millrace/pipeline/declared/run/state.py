"""The state directory of a pipeline: who runs it, how far it is, and the wish that it stop.

A lock on a file, not the number of a process, says whether it runs: the kernel lets go of it however the
process ends. All of this is for one machine; checkpoints may be anywhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from millrace.pipeline.declared.language.model import Pipeline
from millrace.pipeline.errors import PipelineError

ENDED: Final = ("finished", "stopped", "failed")
STATE_FOLDER: Final = ".millrace"
_LOCK_TRIES: Final = 10


class AlreadyRunning(PipelineError):
    """The pipeline runs already; two runs would write the same checkpoints."""


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """What a run keeps beside its checkpoints: lock, status, the wish to stop, traces."""

    path: Path

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    @property
    def status_path(self) -> Path:
        return self.path / "status.json"

    @property
    def stop_path(self) -> Path:
        return self.path / "stop"

    @property
    def trace_path(self) -> Path:
        """What Spark said about the errors of the run, in full."""
        return self.path / "traces.log"

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Be the one run of this pipeline while the block lasts."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock_path.open("a+") as lock:
            if not _locked(lock):
                pid = (self.status() or {}).get("pid", "unknown")
                raise AlreadyRunning(
                    f"{name} runs already, as process {pid}: `millrace pipeline stop FILE` ends it"
                )
            # A wish to stop that an earlier run did not live to see is not meant for this one.
            self.stop_path.unlink(missing_ok=True)
            self.trace_path.unlink(missing_ok=True)
            yield

    def is_held(self) -> bool:
        try:
            with self.lock_path.open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def write_status(self, document: dict[str, Any]) -> None:
        """Replace the status as a whole: a reader sees the old one or the new one."""
        write_atomically(self.status_path, document)

    def status(self) -> dict[str, Any] | None:
        """The last status with what the lock says about it; None if this pipeline has never run here."""
        document = read_document(self.status_path)
        if document is None:
            return None
        if document.get("state") not in ENDED and not self.is_held():
            document["state"] = "died"
        return document

    def ask_to_stop(self) -> None:
        self.stop_path.touch()

    def is_asked_to_stop(self) -> bool:
        return self.stop_path.exists()

    def wait_until_free(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_held():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True


def _locked(lock: IO[str]) -> bool:
    """Take the lock. `is_held` takes it for a moment too, so we try a few times."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False


def state_directory(path: Path, name: str, root: Path | None = None) -> StateDirectory:
    """A pipeline's state: beside its file, so that each copy has its own, or below `root`."""
    return StateDirectory((path.absolute().parent / STATE_FOLDER if root is None else root) / name)


def state_directories(root: Path) -> list[StateDirectory]:
    """All pipelines that have run below a root."""
    return [StateDirectory(path.parent) for path in sorted(root.glob("*/status.json"))]


def checkpoint_root(pipeline: Pipeline, state: StateDirectory) -> str:
    return pipeline.checkpoint or str((state.path / "checkpoints").absolute())


def write_atomically(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_document(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise PipelineError(f"{path} is damaged: {error}") from None
    return document if isinstance(document, dict) else None
