"""What permissions and quotas cost for each request: instructions of brokers that check them beside one that
does not, for fixed numbers of requests.

    python -m benchmarks.counts

Workloads that run for a time count what a broker does by the clock, and what it learns once for each
connection. Here every broker gets the same requests, one after the other over one connection, and only those
after the first few are counted. The least of several passes counts.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from benchmarks import frames, group_frames
from benchmarks.brokers import Broker, BrokerFactory, BrokerFailed, System, default_millrace
from benchmarks.compare import COUNTED_SETTINGS, DEARER_MAX, WORK
from benchmarks.connection import Connection
from benchmarks.guards import GUARDS
from benchmarks.instructions import CALLGRIND, NotCounted, instructions, require_callgrind
from benchmarks.servers import HOST

TOPIC: Final = "bench-counts"
GROUP: Final = "bench-counts"
WITHOUT: Final = "none"
PASSES: Final = 3
LARGE_BYTES: Final = 1_000_000
FILL_BATCHES: Final = 24
COORDINATOR_S: Final = 60.0
OK: Final = b"\x00\x00"


class Refused(Exception):
    """A broker answered a request with an error: what it costs says nothing."""


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of request."""

    title: str
    request: bytes
    is_fine: Callable[[bytes], bool]
    count: int


def lines() -> list[Line]:
    """All kinds, in the order in which they are counted: the fetches read what was produced before."""

    def produce(value_bytes: int, count: int, records: int = 1) -> Line:
        batch = frames.build_batch(os.urandom(value_bytes), records, int(time.time() * 1000))
        at = frames.produce_error_at(TOPIC) - 4
        title = "1 record" if records == 1 else f"{len(batch) // 1000} kB"
        return Line(
            f"produce, {title}",
            frames.produce_request(TOPIC, 0, batch),
            lambda answer: answer[at : at + 2] == OK,
            count,
        )

    def fetch(size_bytes: int, count: int) -> Line:
        return Line(
            f"fetch, {size_bytes // 1000} kB",
            frames.fetch_request(TOPIC, 0, 0, size_bytes),
            lambda answer: frames.fetch_answer(answer).error_code == 0,
            count,
        )

    commit_at = group_frames.offset_commit_error_at(TOPIC) - 4
    large = frames.records_that_fit(1_000, LARGE_BYTES)
    return [
        produce(100, 400),
        produce(1_000, 200, frames.records_that_fit(1_000, 16 * 1024)),
        produce(1_000, FILL_BATCHES, large),
        fetch(64_000, 200),
        fetch(LARGE_BYTES, 100),
        Line(
            "offset commit",
            group_frames.offset_commit(GROUP, TOPIC, 0, 1),
            lambda answer: answer[commit_at : commit_at + 2] == OK,
            400,
        ),
    ]


def count(broker: Broker, wanted: Sequence[Line]) -> dict[str, float]:
    """Instructions for each request, by title. Raises Refused."""
    (pid,) = broker.server.pids
    found = {}
    with Connection(HOST, broker.port, timeout_s=COORDINATOR_S) as connection:
        for line in wanted:
            _send(connection, line, max(line.count // 10, 2))
            passes = []
            for _ in range(PASSES):
                before = instructions(pid)
                _send(connection, line, line.count)
                passes.append((instructions(pid) - before) / line.count)
            found[line.title] = min(passes)
    return found


def _send(connection: Connection, line: Line, times: int) -> None:
    for _ in range(times):
        if not line.is_fine(connection.request(line.request)):
            raise Refused(f"{line.title} was refused")


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """In Markdown: a row for each kind of request, a column for each guard."""
    guards = [name for name in found if name != WITHOUT]
    rows = [
        f"| instructions for each | without | {' | '.join(f'{name} | ratio' for name in guards)} |",
        f"|---|---:|{'---:|---:|' * len(guards)}",
    ]
    for title, alone in found[WITHOUT].items():
        cells = [f"{found[name][title]:,.0f} | {found[name][title] / alone:.3f}x" for name in guards]
        rows.append(f"| {title} | {alone:,.0f} | {' | '.join(cells)} |")
    return rows


def are_within_limit(found: dict[str, dict[str, float]]) -> bool:
    return all(
        value <= found[WITHOUT][title] * DEARER_MAX
        for values in found.values()
        for title, value in values.items()
    )


@contextmanager
def _broker(guard: str | None) -> Iterator[Broker]:
    command = f"{shlex.join(CALLGRIND)} {shlex.quote(default_millrace())}"
    with tempfile.TemporaryDirectory(dir=WORK, prefix="counts-") as directory:
        factory = BrokerFactory(
            Path(directory), None, millrace_command=command, millrace_settings=COUNTED_SETTINGS, guard=guard
        )
        try:
            broker = factory.create(System.MILLRACE)
            broker.start()
            yield broker
        finally:
            factory.close()


def _prepare(broker: Broker) -> None:
    """A topic, and the coordinator of the group, which the first question for it creates."""
    broker.create_topic(TOPIC)
    instructions(broker.server.pids[0])
    commit = group_frames.offset_commit(GROUP, TOPIC, 0, 1)
    at = group_frames.offset_commit_error_at(TOPIC) - 4
    deadline = time.monotonic() + COORDINATOR_S
    with Connection(HOST, broker.port, timeout_s=COORDINATOR_S) as connection:
        connection.request(group_frames.find_coordinator(GROUP))
        while connection.request(commit)[at : at + 2] != OK:
            if time.monotonic() > deadline:
                raise Refused("the group has no coordinator")
            time.sleep(0.1)


@click.command(help="Count what permissions and quotas cost for each request.")
@click.option("--guard", "guards", type=click.Choice(GUARDS), multiple=True, default=GUARDS)
def main(guards: tuple[str, ...]) -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = lines()
    found: dict[str, dict[str, float]] = {}
    try:
        require_callgrind()
        for guard in (None, *guards):
            with _broker(guard) as broker:
                _prepare(broker)
                found[guard or WITHOUT] = count(broker, wanted)
    except (BrokerFailed, NotCounted, Refused, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo("\n".join(table(found)))
    sys.exit(0 if are_within_limit(found) else 1)


if __name__ == "__main__":
    main()
