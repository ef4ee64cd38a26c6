"""Runs a declared pipeline: all its queries in one Spark session, watched until they end or are to stop.

The runner never touches rows. What has to survive it is in checkpoints and sinks; what others want to know
while it runs is in the state directory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from millrace.pipeline.declared import sinks
from millrace.pipeline.declared.frames import Frames, build_frames, note
from millrace.pipeline.declared.functions import register_functions
from millrace.pipeline.declared.identity import check_identity
from millrace.pipeline.declared.mistakes import InvalidPipeline, Mistakes
from millrace.pipeline.declared.model import Pipeline, Sink, TopicSource, Trigger
from millrace.pipeline.declared.state import StateDirectory, checkpoint_root
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.progress import ProgressBoard, make_listener
from millrace.pipeline.spark_errors import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
STATUS_INTERVAL_S: Final = 1.0
SETTLE_S: Final = 15.0
# How long a batch may take to end after the wish to stop; then it is broken off, and done again next time.
STOP_TIMEOUT_S: Final = 300.0
# A worker has ten seconds to report, a limit that Spark does not let us change; on a busy machine it may need
# longer. Nothing has been read or written then, so that another try is safe.
_WORKER_TOO_SLOW: Final = "Python worker failed to connect back"
_TRIES: Final = 6


class QueryFailed(PipelineError):
    """One of the queries ended with an error; the others were stopped."""


@dataclass(slots=True)
class _Running:
    """A query, and how it is started again."""

    start: Callable[[], StreamingQuery]
    query: StreamingQuery
    tries: int = 1


@dataclass(slots=True, kw_only=True)
class Runner:
    """One run of one pipeline, from the first query to the last status."""

    pipeline: Pipeline
    state: StateDirectory
    board: ProgressBoard
    say: Callable[[str], None]
    master: str
    metrics_url: str | None = None
    once: bool = False
    stop_timeout_s: float = STOP_TIMEOUT_S
    _running: list[_Running] = field(default_factory=list)
    _signalled: bool = False
    _began_at: str = ""
    _status_at: float = 0.0

    def run(self, make_spark: Callable[[], SparkSession]) -> str:
        """Run until all queries end or somebody wants to stop; how it ended. The lock must be held."""
        check_identity(self.pipeline, self.state)
        self._began_at = _now()
        self._write_status("starting")
        outcome, error = "failed", None
        try:
            spark = make_spark()
            listener = make_listener(self.board)
            # Spark has put its own handler in place by now; ours must come after it.
            with self._signals():
                try:
                    spark.streams.addListener(listener)
                    self._start(self._build(spark))
                    outcome = self._watch()
                finally:
                    self._stop_queries()
                    self._settle()
                    spark.streams.removeListener(listener)
        except BaseException as failure:
            error = explain(failure) if isinstance(failure, Exception) else "interrupted"
            raise
        finally:
            self._write_status(outcome, error=error)
        return outcome

    def _build(self, spark: SparkSession) -> Frames:
        from millrace.pipeline import register

        register(spark)
        mistakes = Mistakes()
        register_functions(spark, self.pipeline, self.state.path / "shipped", mistakes)
        frames = build_frames(spark, self.pipeline, mistakes)
        if mistakes.fatal:
            raise InvalidPipeline(self.pipeline.path, mistakes.in_order())
        return frames

    def _start(self, frames: Frames) -> None:
        pipeline = self.pipeline
        root = checkpoint_root(pipeline, self.state)
        for sink in pipeline.sinks.values():
            if not pipeline.is_streaming(sink.view):
                self._write_once(frames, sink)
        for sink in pipeline.sinks.values():
            if pipeline.is_streaming(sink.view):
                sink = self._with_trigger(sink)
                start = partial(
                    sinks.start_stream,
                    frames.views[sink.view],
                    sink,
                    checkpoint=f"{root}/{sink.name}",
                    pipeline=pipeline.name,
                )
                with self._located(sink):
                    self._add(start)
        for name, rejected in frames.rejected.items():
            self._start_dead_letters(name, rejected, root)

    def _start_dead_letters(self, name: str, rejected: DataFrame, root: str) -> None:
        source = self.pipeline.sources[name]
        readers = [sink for sink in self.pipeline.sinks.values() if name in self.pipeline.upstream(sink.view)]
        if not isinstance(source, TopicSource) or not readers:
            return
        if not source.streaming:
            sinks.write_dead_letters_once(rejected, source)
            return
        start = partial(
            sinks.start_dead_letters,
            rejected,
            source,
            checkpoint=f"{root}/{name}.dead_letters",
            trigger=self._with_trigger(readers[0]).trigger,
        )
        self._add(start)

    def _add(self, start: Callable[[], StreamingQuery]) -> None:
        """Start a query and let it find its sources: several workers that start at once delay each other."""
        query = start()
        self._running.append(_Running(start, query))
        deadline = time.monotonic() + SETTLE_S
        while query.isActive and "Initializing" in query.status["message"] and time.monotonic() < deadline:
            time.sleep(0.05)

    def _write_once(self, frames: Frames, sink: Sink) -> None:
        self.board.batch_job(sink.name, state="running")
        with self._located(sink):
            sinks.write_once(frames.views[sink.view], sink)
        self.board.batch_job(sink.name, state="ended")

    def _with_trigger(self, sink: Sink) -> Sink:
        return replace(sink, trigger=Trigger("available-now")) if self.once else sink

    @contextmanager
    def _located(self, sink: Sink) -> Iterator[None]:
        """What fails while a sink starts is said with its line."""
        try:
            yield
        except Exception as error:
            mistakes = Mistakes()
            note(error, sink.mark, f"sinks.{sink.name}", mistakes)
            raise InvalidPipeline(self.pipeline.path, mistakes.in_order()) from error

    def _watch(self) -> str:
        """Until the last query ends; a failure of one ends all."""
        while True:
            for running in self._running:
                query = running.query
                if not query.isActive and (failure := query.exception()) is not None:
                    self._start_again(running, failure)
            if not any(query.isActive for query in self._queries):
                return "finished"
            if self._signalled or self.state.is_asked_to_stop():
                self._write_status("stopping")
                self._finish_batches()
                return "stopped"
            self._tick("running")
            time.sleep(POLL_S)

    @property
    def _queries(self) -> list[StreamingQuery]:
        return [running.query for running in self._running]

    def _start_again(self, running: _Running, failure: Exception) -> None:
        name = running.query.name or str(running.query.id)
        reason = explain(failure)
        if _WORKER_TOO_SLOW not in reason or running.tries >= _TRIES:
            raise QueryFailed(f"{name}: {reason}")
        self.say(f"{name}: a worker took too long to start; trying again")
        self.board.forget(str(running.query.runId))
        running.query = running.start()
        running.tries += 1

    def _finish_batches(self) -> None:
        """Let each query end the batch it is in: stopped between two, nothing has to be done again."""
        self.say("stopping: each query ends the batch it is in")
        deadline = time.monotonic() + self.stop_timeout_s
        waiting = {query: _batch_of(query) for query in self._queries if query.isActive}
        while waiting and time.monotonic() < deadline:
            for query, batch in list(waiting.items()):
                if not query.isActive or not query.status["isTriggerActive"] or _batch_of(query) > batch:
                    query.stop()
                    del waiting[query]
            self._tick("stopping")
            time.sleep(0.02)
        for query in waiting:
            self.say(f"{query.name}: its batch takes too long; broken off, it is done again at the next run")

    def _stop_queries(self) -> None:
        for query in self._queries:
            if query.isActive:
                query.stop()

    def _settle(self) -> None:
        """Events come a little after what they tell of: wait for the last one of each query."""
        deadline = time.monotonic() + SETTLE_S
        started = {str(query.runId) for query in self._queries}
        while time.monotonic() < deadline:
            ended = {each.run_id for each in self.board.snapshot() if each.state in ("ended", "failed")}
            if started <= ended:
                return
            time.sleep(0.02)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop in order; a second SIGINT does not wait."""

        def stop(number: int, _frame: object) -> None:
            if self._signalled and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._signalled = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _tick(self, state: str) -> None:
        if time.monotonic() - self._status_at >= STATUS_INTERVAL_S:
            self._write_status(state)

    def _write_status(self, state: str, *, error: str | None = None) -> None:
        self._status_at = time.monotonic()
        self.state.write_status(
            {
                "pipeline": self.pipeline.name,
                "file": str(self.pipeline.path.absolute()),
                "state": state,
                "pid": os.getpid(),
                "master": self.master,
                "metrics": self.metrics_url,
                "began": self._began_at,
                "updated": _now(),
                "error": error,
                "queries": [query.as_document() for query in self.board.snapshot()],
            }
        )


def _batch_of(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
