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

from millrace.client.errors import ConnectionFailed
from millrace.core.errors import MillraceError
from millrace.pipeline.declared.language.mistakes import InvalidPipeline, Mistakes
from millrace.pipeline.declared.language.model import Pipeline, Sink, TopicSource, Trigger
from millrace.pipeline.declared.run import sinks
from millrace.pipeline.declared.run.frames import Frames, build_frames, note
from millrace.pipeline.declared.run.functions import register_functions
from millrace.pipeline.declared.run.identity import check_identity
from millrace.pipeline.declared.run.outages import (
    PROBE_INTERVAL_S,
    SAY_INTERVAL_S,
    clusters_of,
    no_broker_answers,
    unreachable,
    wait_for_brokers,
)
from millrace.pipeline.declared.run.retries import Attempts, RetryLimits
from millrace.pipeline.declared.run.state import StateDirectory, checkpoint_root
from millrace.pipeline.errors import PipelineError
from millrace.pipeline.progress import ProgressBoard, make_listener
from millrace.pipeline.spark.spark_errors import explain, is_analysis_error, is_spark_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
STATUS_INTERVAL_S: Final = 1.0
# How long Spark gets to begin a query, and to tell that one has ended.
SPARK_ANSWER_S: Final = 15.0
# How long a batch may take to end once a run is asked to stop. Then the run breaks it off, and the next run
# does it again.
STOP_TIMEOUT_S: Final = 300.0


class QueryFailed(PipelineError):
    """Some queries were still failing when the run ended; the others went on until then."""


@dataclass(slots=True)
class _Running:
    """A query, and how to start it again: it goes on from its checkpoint, so that another try is safe."""

    name: str
    start: Callable[[], StreamingQuery]
    query: StreamingQuery
    attempts: Attempts


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
    limits: RetryLimits = field(default_factory=RetryLimits)
    shows_traces: bool = False
    """Whether to print Spark's traces; otherwise they go into a file of the state directory."""
    _running: list[_Running] = field(default_factory=list)
    _failed: dict[str, str] = field(default_factory=dict)
    """Sinks that are written once and were given up, with the reason."""
    _signalled: bool = False
    _outage_said_at: float = 0.0
    _began_at: str = ""
    _status_at: float = 0.0

    def run(self, make_spark: Callable[[], SparkSession]) -> str:
        """Run until all queries end or somebody asks to stop; return which. The caller holds the lock."""
        check_identity(self.pipeline, self.state)
        self._began_at = _now()
        self._write_status("starting")
        outcome, error = "failed", None
        try:
            # We wait before we start Spark, which takes a while and would then wait in silence.
            self._wait_for_brokers()
            if self._is_to_stop:
                outcome = "stopped"
                return outcome
            spark = make_spark()
            listener = make_listener(self.board, self._keep_trace)
            # Spark has put its own handler in place by now; ours must come after it.
            with self._signals():
                try:
                    spark.streams.addListener(listener)
                    self._start(self._build(spark))
                    ended = self._watch()
                finally:
                    self._stop_queries()
                    self._await_last_events()
                    spark.streams.removeListener(listener)
            self._report_failures(ended)
            outcome = ended
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
                self._write_once(sink.name, partial(self._write_sink, frames, sink))
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
                    self._add(sink.name, start)
        for name, rejected in frames.rejected.items():
            self._start_dead_letters(name, rejected, root)

    def _start_dead_letters(self, name: str, rejected: DataFrame, root: str) -> None:
        source = self.pipeline.sources[name]
        readers = [sink for sink in self.pipeline.sinks.values() if name in self.pipeline.upstream(sink.view)]
        if not isinstance(source, TopicSource) or not readers:
            return
        if not source.streaming:
            self._write_once(f"{name}.dead_letters", partial(sinks.write_dead_letters_once, rejected, source))
            return
        start = partial(
            sinks.start_dead_letters,
            rejected,
            source,
            checkpoint=f"{root}/{name}.dead_letters",
            trigger=self._with_trigger(readers[0]).trigger,
        )
        self._add(f"{name}.dead_letters", start)

    def _add(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        """Start a query and let it find its sources: several workers that start at once delay each other."""
        query = start()
        self._running.append(_Running(name, start, query, Attempts(self.limits)))
        deadline = time.monotonic() + SPARK_ANSWER_S
        while query.isActive and "Initializing" in query.status["message"] and time.monotonic() < deadline:
            time.sleep(0.05)

    def _write_sink(self, frames: Frames, sink: Sink, *, job: str, version: int) -> None:
        with self._located(sink):
            sinks.write_once(frames.views[sink.view], sink, job=job, version=version)

    def _write_once(self, name: str, write: Callable[..., None]) -> None:
        """Write a sink that is no stream; if it fails for good, the others still get their turn."""
        attempts = Attempts(self.limits)
        job, version = f"{self.pipeline.name}.{name}", time.time_ns() // 1_000_000
        while not attempts.is_given_up and not self._is_to_stop:
            self.board.batch_job(name, state="running")
            try:
                write(job=job, version=version)
            except Exception as error:
                located = error if isinstance(error, InvalidPipeline) else None
                cause = error if located is None else located.__cause__
                if is_analysis_error(cause) or not (
                    is_spark_error(error) or isinstance(error, MillraceError)
                ):
                    # The query does not fit its tables, or our code is wrong: another try finds the same.
                    raise
                reason = explain(error) if located is None else located.mistakes[0].what
                self._note_failure(name, attempts, reason)
                self._pause(attempts)
            else:
                self.board.batch_job(name, state="ended")
                return
        if attempts.reason:
            self._failed[name] = attempts.reason
            self.board.batch_job(name, state="failed", error=attempts.reason)

    def _with_trigger(self, sink: Sink) -> Sink:
        return replace(sink, trigger=Trigger("available-now")) if self.once else sink

    @contextmanager
    def _located(self, sink: Sink) -> Iterator[None]:
        """Report what fails while a sink starts with the line of that sink."""
        try:
            yield
        except Exception as error:
            mistakes = Mistakes()
            note(error, sink.mark, f"sinks.{sink.name}", mistakes)
            raise InvalidPipeline(self.pipeline.path, mistakes.in_order()) from error

    def _watch(self) -> str:
        """Watch until the last query ends; restart one that fails while the others go on."""
        while True:
            # We ask this before we look after them: the next turn finds one that fails in between.
            is_any_active = any(query.isActive for query in self._queries)
            is_any_failing = any([self._look_after(each) for each in self._running])  # noqa: C419 - all of them
            if not is_any_active and not is_any_failing:
                return "finished"
            if self._is_to_stop:
                self._write_status("stopping")
                self._finish_batches()
                for running in self._running:
                    running.attempts.advanced(finished_batch(running.query))
                return "stopped"
            self._tick("running")
            time.sleep(POLL_S)

    @property
    def _queries(self) -> list[StreamingQuery]:
        return [running.query for running in self._running]

    @property
    def _is_to_stop(self) -> bool:
        return self._signalled or self.state.is_asked_to_stop()

    def _look_after(self, running: _Running) -> bool:
        """Whether the query has failed and there is hope for it."""
        attempts, query = running.attempts, running.query
        attempts.advanced(finished_batch(query))
        if attempts.is_given_up:
            return False
        if attempts.retry_at is not None:
            self._try_again(running)
            return True
        if query.isActive:
            return False
        failure = query.exception()
        if failure is None:
            attempts.recovered()
            return False
        self._note_failure(running.name, attempts, explain(failure))
        return True

    def _note_failure(self, name: str, attempts: Attempts, reason: str) -> None:
        is_outage = bool(unreachable(self._clusters))
        self.say(f"{name}: {attempts.failed(reason, time.monotonic(), is_outage=is_outage)}")

    def _keep_trace(self, run_id: str, trace: str) -> None:
        """Keep what Spark says about an error; Spark calls this on a thread of its own."""
        name = next((each.name for each in self.board.snapshot() if each.run_id == run_id), run_id)
        if self.shows_traces:
            self.say(f"{name}: {trace.rstrip()}")
            return
        with self.state.trace_path.open("a", encoding="utf-8") as file:
            file.write(f"{_now()} {name}: {trace.rstrip()}\n\n")

    def _try_again(self, running: _Running) -> None:
        attempts, now = running.attempts, time.monotonic()
        assert attempts.retry_at is not None, running.name
        if now < attempts.retry_at:
            return
        if attempts.outage_since is not None:
            missing = unreachable(self._clusters)
            if missing and not attempts.may_wait(now):
                self.say(f"{running.name}: {attempts.give_up()}")
            elif missing:
                self._say_outage(missing, now - attempts.outage_since)
                attempts.retry_at = now + PROBE_INTERVAL_S
            if missing:
                return
        ended = str(running.query.runId)
        try:
            query = running.start()
        except Exception as error:
            if not is_spark_error(error) and not isinstance(error, MillraceError):
                raise
            self._note_failure(running.name, attempts, explain(error))
            return
        self.say(f"{running.name}: started again")
        self.board.forget(ended)
        running.query = query
        attempts.retry_at = attempts.outage_since = None

    def _say_outage(self, missing: list[str], since_s: float) -> None:
        """Say every half minute that brokers are missing, whichever of the queries waits."""
        now = time.monotonic()
        if now - self._outage_said_at >= SAY_INTERVAL_S:
            self._outage_said_at = now
            self.say(f"{no_broker_answers(missing)} after {since_s:.0f} s: still waiting")

    def _pause(self, attempts: Attempts) -> None:
        """Wait until the next try of a sink that is written once."""
        if attempts.outage_since is not None:
            try:
                self._wait_for_brokers()
            except ConnectionFailed as failure:
                self.say(f"{failure}: {attempts.give_up()}")
        while attempts.retry_at is not None and time.monotonic() < attempts.retry_at and not self._is_to_stop:
            time.sleep(POLL_S)

    def _wait_for_brokers(self) -> None:
        wait_for_brokers(
            self._clusters,
            limit_s=self.limits.outage_timeout_s,
            say=self.say,
            is_stopped=lambda: self._is_to_stop,
        )

    @property
    def _clusters(self) -> tuple[str, ...]:
        return clusters_of(self.pipeline)

    def _report_failures(self, ended: str) -> None:
        failing = dict(self._failed)
        failing |= {each.name: each.attempts.reason for each in self._running if each.attempts.is_failing}
        if not failing:
            return
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failing.items())
        others = len(self.pipeline.sinks) - sum(name in self.pipeline.sinks for name in failing)
        went_on = f" ({others} of {len(self.pipeline.sinks)} sinks {ended} well)" if others else ""
        if self.state.trace_path.exists() and not self.shows_traces:
            self.say(f"Spark's traces are in {self.state.trace_path}")
        raise QueryFailed(f"{reasons}{went_on}")

    def _finish_batches(self) -> None:
        """Let each query end its batch: after a stop between two batches, nothing has to be done again."""
        self.say("stopping: each query ends the batch it is in")
        deadline = time.monotonic() + self.stop_timeout_s
        waiting = {each.name: each for each in self._running if each.query.isActive}
        batches = {name: finished_batch(each.query) for name, each in waiting.items()}
        while waiting and time.monotonic() < deadline:
            for name, running in list(waiting.items()):
                query = running.query
                if not query.isActive:
                    # The query ended by itself: if it failed in its last batch, the run has not ended well.
                    self._look_after(running)
                elif query.status["isTriggerActive"] and finished_batch(query) <= batches[name]:
                    continue
                query.stop()
                del waiting[name]
            self._tick("stopping")
            time.sleep(0.02)
        for name in waiting:
            self.say(f"{name}: its batch takes too long and is broken off; the next run does it again")

    def _stop_queries(self) -> None:
        for query in self._queries:
            if query.isActive:
                query.stop()

    def _await_last_events(self) -> None:
        """Wait for the last event of each query: events come a little after what they tell of."""
        deadline = time.monotonic() + SPARK_ANSWER_S
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


def finished_batch(query: StreamingQuery) -> int:
    """The number of the last batch that a query has finished, -1 before the first.

    While it has nothing to do, it reports the batch that comes next, which has no time `addBatch` yet."""
    progress = query.lastProgress
    if progress is None:
        return -1
    return int(progress["batchId"]) - ("addBatch" not in progress["durationMs"])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
