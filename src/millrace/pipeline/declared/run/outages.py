"""Finds out whether the brokers of a pipeline can be reached, and waits for them, saying so."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from typing import Final

from millrace.client.errors import ConnectionFailed
from millrace.client.servers import parse_servers
from millrace.pipeline.declared.language.model import Pipeline, TopicSink, TopicSource

PROBE_TIMEOUT_S: Final = 2.0
PROBE_INTERVAL_S: Final = 0.5
SAY_INTERVAL_S: Final = 30.0

Probe = Callable[[str], bool]
"""Whether one of these servers takes a connection."""


def clusters_of(pipeline: Pipeline) -> tuple[str, ...]:
    """The bootstrap servers that the pipeline reads from and writes to, each cluster once."""
    parts = (*pipeline.sources.values(), *pipeline.sinks.values())
    return tuple(dict.fromkeys(part.bootstrap for part in parts if isinstance(part, TopicSource | TopicSink)))


def is_reachable(bootstrap: str) -> bool:
    """Whether anything listens at one of the addresses; only a request would show what it is."""
    for host, port in parse_servers(bootstrap):
        try:
            socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S).close()
        except OSError:
            continue
        return True
    return False


def unreachable(clusters: Iterable[str], probe: Probe = is_reachable) -> list[str]:
    return [bootstrap for bootstrap in clusters if not probe(bootstrap)]


def wait_for_brokers(
    clusters: Iterable[str],
    *,
    limit_s: float,
    say: Callable[[str], None],
    is_stopped: Callable[[], bool],
    probe: Probe = is_reachable,
) -> None:
    """Return as soon as every cluster has a broker that answers, or somebody asks to stop.

    Says at once where nobody answers, and again every half minute. Raises ConnectionFailed after
    `limit_s`."""
    began = said = time.monotonic()
    missing = unreachable(clusters, probe)
    if missing:
        say(f"{no_broker_answers(missing)}: waiting for one, at most {limit_s:g} s")
    while missing and not is_stopped():
        now = time.monotonic()
        if now - began >= limit_s:
            raise ConnectionFailed(f"{no_broker_answers(missing)} after {limit_s:g} s")
        if now - said >= SAY_INTERVAL_S:
            said = now
            say(f"{no_broker_answers(missing)} after {now - began:.0f} s: still waiting")
        time.sleep(PROBE_INTERVAL_S)
        missing = unreachable(missing, probe)
        if not missing:
            say(f"a broker answers after {time.monotonic() - began:.0f} s: going on")


def no_broker_answers(missing: Iterable[str]) -> str:
    """The words for messages about clusters that cannot be reached."""
    return f"no broker answers at {' and at '.join(missing)}"
