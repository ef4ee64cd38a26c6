"""The state directory: one run at a time, a status that can be trusted, and checkpoints with an owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.pipeline.declared.check.check import load
from millrace.pipeline.declared.language.model import Pipeline
from millrace.pipeline.declared.run.identity import CheckpointMismatch, check_identity, identity_path
from millrace.pipeline.declared.run.state import (
    AlreadyRunning,
    StateDirectory,
    state_directories,
    state_directory,
)

TEXT = """\
pipeline: p
sources:
  orders: {topic: orders}
  people: {files: people.csv}
steps:
  named: SELECT * FROM orders JOIN people USING (id)
sinks:
  out: {from: named, topic: out, format: raw}
  lake: {from: orders, delta: lake}
"""


def pipeline_of(folder: Path, text: str = TEXT) -> Pipeline:
    path = folder / "p.yaml"
    path.write_text(text)
    return load(path)[0]


def test_a_pipeline_runs_once_at_a_time(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "p")
    with state.held("p"):
        assert state.is_held()
        state.write_status({"pid": 77, "state": "running"})
        with pytest.raises(AlreadyRunning, match="p runs already, as process 77"), state.held("p"):
            pass
    assert not state.is_held()
    with state.held("p"):
        pass


def test_the_status_of_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "p")
    assert state.status() is None
    with state.held("p"):
        state.write_status({"state": "running"})
        status = state.status()
        assert status is not None
        assert status["state"] == "running"
    status = state.status()
    assert status is not None
    assert status["state"] == "died"
    state.write_status({"state": "finished"})
    assert state.status() == {"state": "finished"}
    assert state_directories(tmp_path) == [state]


def test_an_old_wish_to_stop_does_not_stop_the_next_run(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "p")
    with state.held("p"):
        state.ask_to_stop()
        assert state.is_asked_to_stop()
    with state.held("p"):
        assert not state.is_asked_to_stop()


def test_state_is_beside_the_file_or_where_the_user_says(tmp_path: Path) -> None:
    assert state_directory(tmp_path / "p.yaml", "p").path == tmp_path / ".millrace" / "p"
    assert state_directory(tmp_path / "p.yaml", "p", tmp_path / "s").path == tmp_path / "s" / "p"


CHANGES = [
    ("orders: {topic: orders}", "orders: {topic: other}", "reads topics other; when the checkpoint was made"),
    ("orders: {topic: orders}", "orders: {topics: [orders, other]}", "it was topics orders"),
    ("people: {files: people.csv}", "people: {topic: people}", "reads topics orders and topics people"),
    ("topic: out", "topic: elsewhere", "sinks.out (line 8) writes to topic elsewhere"),
    ("topic: out,", "topic: out, mode: update,", "has the mode update"),
    ("delta: lake", "delta: sea", "sinks.lake (line 9) writes to delta"),
]


@pytest.mark.parametrize("before, after, words", CHANGES)
def test_a_checkpoint_of_other_sources_or_another_target_is_refused(
    before: str, after: str, words: str, tmp_path: Path
) -> None:
    """Spark would take one topic's offsets for another's, or leave a gap in the new target."""
    state = StateDirectory(tmp_path / "state")
    check_identity(pipeline_of(tmp_path), state)
    check_identity(pipeline_of(tmp_path), state)
    with pytest.raises(CheckpointMismatch) as refused:
        check_identity(pipeline_of(tmp_path, TEXT.replace(before, after)), state)
    assert words in str(refused.value)
    assert "to begin anew, remove" in str(refused.value)
    # The refusal changed nothing: the old file still runs.
    check_identity(pipeline_of(tmp_path), state)


def test_what_a_checkpoint_does_not_depend_on_may_change(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    check_identity(pipeline_of(tmp_path), state)
    text = TEXT.replace("USING (id)", "USING (id) WHERE amount > 1").replace("people.csv", "others.csv")
    check_identity(pipeline_of(tmp_path, text + "  more: {from: named, console: true}\n"), state)
    # A sink that was gone for a while finds its checkpoint still guarded.
    check_identity(pipeline_of(tmp_path, text.replace("  lake: {from: orders, delta: lake}\n", "")), state)
    with pytest.raises(CheckpointMismatch):
        check_identity(pipeline_of(tmp_path, text.replace("delta: lake", "delta: sea")), state)


def test_the_identity_lies_with_the_checkpoints(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    local = pipeline_of(tmp_path, TEXT.replace("pipeline: p", "pipeline: p\ncheckpoint: cp"))
    assert identity_path(local, state) == tmp_path / "cp" / "millrace-pipeline.json"
    remote = pipeline_of(tmp_path, TEXT.replace("pipeline: p", "pipeline: p\ncheckpoint: s3a://b/cp"))
    assert identity_path(remote, state) == tmp_path / "state" / "millrace-pipeline.json"
