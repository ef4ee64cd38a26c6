"""How far streaming queries have come: from Spark's events, shown as bars or lines, exported to Prometheus.

The board knows nothing of Spark: it takes the JSON document of each event, so that it can be tested alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from millrace.core.override import override
from millrace.pipeline.spark.spark_errors import explain_text

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

LOG_INTERVAL_S: Final = 5.0
# We take the rate of the last few batches: one slow batch must not double our estimate of the time left.
RATE_BATCHES: Final = 5
# Whole numbers inside an offset that say which log it is, not how far it goes.
_NOT_POSITIONS: Final = frozenset({"epoch", "leader_epoch", "leaderEpoch", "version", "v"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """One query as last heard of. `lag` counts what its sources still hold; None where they do not say."""

    name: str
    query_id: str = ""
    run_id: str = ""
    state: str = "starting"
    batch: int | None = None
    batches: int = 0
    batch_rows: int = 0
    batch_ms: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    left_s: float | None = None
    watermark: str | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    updated: str | None = None
    error: str | None = None

    def as_document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Query:
    progress: QueryProgress
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_BATCHES))


class ProgressBoard:
    """All queries of one run. Events come from Spark's threads, readers from ours."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline: Final = pipeline
        self._lock: Final = threading.Lock()
        self._queries: Final[dict[str, _Query]] = {}
        self._watchers: Final[list[Callable[[QueryProgress], None]]] = []

    def watch(self, callback: Callable[[QueryProgress], None]) -> None:
        """Call `callback` with a query's progress whenever that changes, on the thread that changed it."""
        self._watchers.append(callback)

    def snapshot(self) -> list[QueryProgress]:
        with self._lock:
            return [query.progress for query in self._queries.values()]

    def started(self, name: str, *, query_id: str, run_id: str) -> None:
        self._change(run_id, lambda _: QueryProgress(name=name, query_id=query_id, run_id=run_id))

    def advanced(self, event: Mapping[str, Any]) -> None:
        """Take the JSON document of a StreamingQueryProgress."""
        run_id = str(event["runId"])
        with self._lock:
            query = self._queries.setdefault(
                run_id, _Query(QueryProgress(name=_name_of(event), query_id=str(event["id"]), run_id=run_id))
            )
            changed = query.progress = _advanced(query, event)
        self._tell(changed)

    def idle(self, run_id: str) -> None:
        self._change(run_id, lambda known: replace(known, state="idle", rows_per_second=0.0))

    def ended(self, run_id: str, error: str | None) -> None:
        self._change(
            run_id,
            lambda known: replace(
                known, state="failed" if error else "ended", error=error, rows_per_second=0.0, left_s=None
            ),
        )

    def forget(self, run_id: str) -> None:
        """Stop showing a start of a query that was started again under the same name."""
        with self._lock:
            self._queries.pop(run_id, None)

    def batch_job(self, name: str, *, state: str, rows: int = 0, error: str | None = None) -> None:
        """Note the state of a sink that is written once as a whole: Spark sends no events about it."""
        self._change(name, lambda known: replace(known, name=name, state=state, rows=rows, error=error))

    def _change(self, run_id: str, change: Callable[[QueryProgress], QueryProgress]) -> None:
        with self._lock:
            query = self._queries.setdefault(run_id, _Query(QueryProgress(name=run_id, run_id=run_id)))
            changed = query.progress = change(query.progress)
        self._tell(changed)

    def _tell(self, changed: QueryProgress) -> None:
        for watcher in self._watchers:
            watcher(changed)


def make_listener(
    board: ProgressBoard, on_trace: Callable[[str, str], None] | None = None
) -> StreamingQueryListener:
    """A listener for `spark.streams.addListener` that keeps the board up to date.

    The board gets one line of an error; `on_trace` is called with the query's id and all that Spark says."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        @override
        def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
            board.started(event.name or str(event.id), query_id=str(event.id), run_id=str(event.runId))

        @override
        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            board.advanced(json.loads(event.progress.json))

        @override
        def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
            board.idle(str(event.runId))

        @override
        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
            if event.exception is None:
                board.ended(str(event.runId), None)
                return
            if on_trace is not None:
                on_trace(str(event.runId), event.exception)
            board.ended(str(event.runId), explain_text(event.exception))

    return Listener()


def lag_of(source: Mapping[str, Any]) -> int | None:
    """How many records a source still holds behind the end of this batch; None where it does not say."""
    end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return _distance(end, latest)


def describe(progress: QueryProgress) -> str:
    """One line about a query, for logs."""
    if progress.state == "failed":
        return f"{progress.name}: failed: {progress.error}"
    if progress.batch is None:
        return f"{progress.name}: {progress.state}"
    words = [f"{progress.name}: batch {progress.batch}"]
    if progress.state in ("idle", "ended"):
        words.append(f"{progress.state}, {progress.rows:,} rows in all")
    else:
        words.append(f"{progress.batch_rows:,} rows in {progress.batch_ms / 1000:.1f} s")
        words.append(f"{progress.rows_per_second:,.0f} rows/s")
    if progress.lag is not None:
        words.append(f"lag {progress.lag:,}")
    if progress.left_s is not None and progress.state == "running":
        words.append(f"about {format_seconds(progress.left_s)} left")
    return ", ".join(words)


def format_seconds(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def shown(board: ProgressBoard, *, bars: bool | None = None) -> Iterator[None]:
    """Show the board on standard error while the block runs: bars on a terminal, log lines elsewhere."""
    if sys.stderr.isatty() if bars is None else bars:
        with _bars(board):
            yield
    else:
        lines = _Lines()
        board.watch(lines.show)
        yield


@contextmanager
def metrics_served(board: ProgressBoard, *, host: str, port: int) -> Iterator[int]:
    """Serve the board at http://HOST:PORT/metrics while the block runs; yields the port (0 picks one)."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_BoardCollector(board))
    server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _name_of(event: Mapping[str, Any]) -> str:
    return str(event.get("name") or event["id"])


def _advanced(query: _Query, event: Mapping[str, Any]) -> QueryProgress:
    known = query.progress
    # Spark counts a source that is read twice (a self join) double in `numInputRows`, and so do we.
    rows = int(event.get("numInputRows") or 0)
    batch_ms = int(event.get("batchDuration") or 0)
    if rows:
        query.recent.append((rows, max(batch_ms, 1)))
    rate = _rate(query.recent)
    lags = [lag_of(source) for source in event.get("sources", ())]
    lag = sum(each for each in lags if each is not None) if any(each is not None for each in lags) else None
    operators = event.get("stateOperators", ())
    return replace(
        known,
        state="running",
        batch=int(event["batchId"]),
        # Spark reports a batch without input again and again while it waits.
        batches=known.batches + (known.batch != int(event["batchId"])),
        batch_rows=rows,
        batch_ms=batch_ms,
        rows=known.rows + rows,
        rows_per_second=rate,
        lag=lag,
        left_s=lag / rate if lag is not None and rate else (0.0 if lag == 0 else None),
        watermark=(event.get("eventTime") or {}).get("watermark", known.watermark),
        state_rows=sum(int(each.get("numRowsTotal", 0)) for each in operators),
        state_bytes=sum(int(each.get("memoryUsedBytes", 0)) for each in operators),
        late_rows=known.late_rows + sum(int(each.get("numRowsDroppedByWatermark", 0)) for each in operators),
        updated=str(event.get("timestamp") or "") or None,
    )


def _rate(recent: deque[tuple[int, int]]) -> float:
    spent_ms = sum(duration for _, duration in recent)
    return 1000 * sum(rows for rows, _ in recent) / spent_ms if spent_ms else 0.0


def _offset(value: Any) -> Any:
    """Offsets come as JSON inside the event's JSON, or as text that holds JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _distance(end: Any, latest: Any, key: str = "") -> int | None:
    """The sum over all positions that both offsets name; a position only in `latest` is a new partition."""
    match end, latest:
        case dict(), dict():
            parts = [_distance(end.get(name, 0), value, str(name)) for name, value in latest.items()]
        case list(), list():
            parts = [_distance(one, other) for one, other in zip(end, latest, strict=False)]
        case int(), dict():
            parts = [_distance(0, value, str(name)) for name, value in latest.items()]
        case int(), int() if key not in _NOT_POSITIONS and not isinstance(latest, bool):
            return max(0, latest - end)
        case _:
            return None
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


class _Lines:
    """Writes a line about each query every few seconds, and one whenever its state changes."""

    def __init__(self) -> None:
        self._last: Final[dict[str, tuple[float, str]]] = {}
        self._lock: Final = threading.Lock()

    def show(self, progress: QueryProgress) -> None:
        now = time.monotonic()
        with self._lock:
            shown_at, state = self._last.get(progress.run_id, (float("-inf"), ""))
            if state == progress.state and now - shown_at < LOG_INTERVAL_S:
                return
            self._last[progress.run_id] = (now, progress.state)
        sys.stderr.write(describe(progress) + "\n")
        sys.stderr.flush()


@contextmanager
def _bars(board: ProgressBoard) -> Iterator[None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    lock = threading.Lock()
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def show(progress: QueryProgress) -> None:
            with lock:
                if progress.run_id not in tasks:
                    tasks[progress.run_id] = bars.add_task(progress.name, total=None, note="")
            total = None if progress.lag is None else progress.rows + progress.lag
            note = describe(progress).removeprefix(f"{progress.name}: ")
            bars.update(tasks[progress.run_id], completed=progress.rows, total=total, note=note)

        board.watch(show)
        yield


class _BoardCollector:
    """Computes what Prometheus asks for when it asks."""

    def __init__(self, board: ProgressBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ("pipeline", "query")
        queries = [((self._board.pipeline, each.name), each) for each in self._board.snapshot()]
        for name, text, counted in _COUNTERS:
            counter = CounterMetricFamily(f"millrace_pipeline_{name}", text, labels=labels)
            for label, each in queries:
                counter.add_metric(label, counted(each))
            yield counter
        for name, text, measured in _GAUGES:
            gauge = GaugeMetricFamily(f"millrace_pipeline_{name}", text, labels=labels)
            for label, each in queries:
                value = measured(each)
                if value is not None:
                    gauge.add_metric(label, value)
            yield gauge


def _epoch_seconds(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


_COUNTERS: Final[tuple[tuple[str, str, Callable[[QueryProgress], float]], ...]] = (
    ("batches", "Micro-batches completed in this run.", lambda each: each.batches),
    ("rows", "Rows read from the sources in this run.", lambda each: each.rows),
    ("late_rows", "Rows that came behind the watermark and were left out.", lambda each: each.late_rows),
)
_GAUGES: Final[tuple[tuple[str, str, Callable[[QueryProgress], float | None]], ...]] = (
    ("up", "1 while the query runs or waits for data.", lambda each: each.state in ("running", "idle")),
    ("failed", "1 if the query ended with an error.", lambda each: each.state == "failed"),
    ("rows_per_second", "Rows each second over the last batches.", lambda each: each.rows_per_second),
    ("batch_duration_seconds", "Time of the last batch.", lambda each: each.batch_ms / 1000),
    ("lag_records", "Records the sources still hold.", lambda each: each.lag),
    ("state_rows", "Rows kept for joins, windows and deduplication.", lambda each: each.state_rows),
    ("state_bytes", "Memory of that state.", lambda each: each.state_bytes),
    (
        "watermark_timestamp_seconds",
        "The watermark in event time.",
        lambda each: _epoch_seconds(each.watermark),
    ),
    ("progress_timestamp_seconds", "When the last batch began.", lambda each: _epoch_seconds(each.updated)),
)
