"""What a checkpoint belongs to: the sources, target and mode of each sink, kept beside the checkpoints.

Spark numbers the sources of a query and trusts that the numbers mean the same at the next start. With other
sources it would take one topic's offsets for another's; with another target, data would be missing there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from millrace.pipeline.declared.language.model import JdbcSink, Pipeline, Sink, TopicSink
from millrace.pipeline.declared.run.state import (
    StateDirectory,
    checkpoint_root,
    read_document,
    write_atomically,
)
from millrace.pipeline.errors import PipelineError

_FILE: Final = "millrace-pipeline.json"
_WORDS: Final = {
    "target": "writes to",
    "mode": "has the mode",
    "sources": "reads",
    "deduplicated": "deduplicates by",
}


class CheckpointMismatch(PipelineError):
    """The file declares other sources or another target than those that the checkpoint was made for."""


def check_identity(pipeline: Pipeline, state: StateDirectory) -> None:
    """Raise if the checkpoint was made for other sources or another target; otherwise write ours down."""
    path = identity_path(pipeline, state)
    document = read_document(path) or {}
    known: dict[str, dict[str, Any]] = document.get("sinks", {})
    declared = {
        sink.name: identity_of(pipeline, sink)
        for sink in pipeline.sinks.values()
        if pipeline.is_streaming(sink.view)
    }
    changes = [
        _change(f"sinks.{name} (line {pipeline.sinks[name].mark.line})", key, value, known[name].get(key))
        for name, now in declared.items()
        if name in known
        for key, value in now.items()
        if known[name].get(key) != value
    ]
    if changes:
        places = ", ".join(sorted(_places(pipeline, state, changes)))
        raise CheckpointMismatch(
            f"{pipeline.path}: {pipeline.name} cannot go on from its checkpoint:\n"
            + "\n".join(changes)
            + "\nTo keep what was done, undo the change, or declare the new one as a sink with another name;"
            f" to begin anew, remove {places}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # We keep entries of sinks that are gone: when they come back, their checkpoints are still there.
    write_atomically(path, {"pipeline": pipeline.name, "sinks": known | declared})


def identity_of(pipeline: Pipeline, sink: Sink) -> dict[str, Any]:
    """What must not change while a checkpoint lives; filters and columns may."""
    match sink:
        case TopicSink(bootstrap=_):
            target = sink.what
        case JdbcSink(url=url):
            target = f"{sink.what} of {url.split(';')[0].split('?')[0]}"
        case _:
            target = sink.what
    sources = [source.identity() for source in pipeline.sources_of(sink.view) if source.streaming]
    steps = [pipeline.steps[name] for name in pipeline.upstream(sink.view) if name in pipeline.steps]
    deduplicated = [list(step.deduplicate) for step in steps if step.deduplicate]
    return {"target": target, "mode": sink.mode, "sources": sources, "deduplicated": deduplicated}


def identity_path(pipeline: Pipeline, state: StateDirectory) -> Path:
    """Where the identity lies: beside the checkpoints, or in the state directory if those are in a store."""
    root = checkpoint_root(pipeline, state)
    return (Path(root) if root.startswith("/") else state.path) / _FILE


def _change(where: str, key: str, now: Any, before: Any) -> str:
    verb = _WORDS[key]
    return f"  {where} {verb} {_listed(now)}; when the checkpoint was made, it was {_listed(before)}"


def _places(pipeline: Pipeline, state: StateDirectory, changes: list[str]) -> list[str]:
    root = checkpoint_root(pipeline, state)
    names = [name for name in pipeline.sinks if any(f"sinks.{name} " in change for change in changes)]
    return [f"{root}/{name}" for name in names] + [f"its entry in {identity_path(pipeline, state)}"]


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(_listed(each) for each in value) or "nothing"
    return str(value)
