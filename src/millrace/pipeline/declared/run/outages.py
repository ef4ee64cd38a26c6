"""Whether any broker of a pipeline can be reached, and waiting for one without silence."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from typing import Final

from millrace.pipeline.declared.language.model import Pipeline, TopicSink, TopicSource
from millrace.pipeline.errors import ConnectionFailed
from millrace.pipeline.kafka.servers import parse_servers

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
    """Whether anything listens at one of the addresses; what it is shows when it is spoken to."""
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
    """Return as soon as every cluster has a broker that answers, or somebody wants to stop.

    Says at once where nobody answers, and again every half minute. Raises ConnectionFailed when it has taken
    too long."""
    began = said = time.monotonic()
    missing = unreachable(clusters, probe)
    if missing:
        say(f"{_nobody(missing)}: waiting for one, at most {limit_s:g} s")
    while missing and not is_stopped():
        now = time.monotonic()
        if now - began >= limit_s:
            raise ConnectionFailed(f"{_nobody(missing)} after {limit_s:g} s")
        if now - said >= SAY_INTERVAL_S:
            said = now
            say(f"{_nobody(missing)} since {now - began:.0f} s: still waiting")
        time.sleep(PROBE_INTERVAL_S)
        missing = unreachable(missing, probe)
        if not missing:
            say(f"a broker answers after {time.monotonic() - began:.0f} s: going on")


def _nobody(missing: Iterable[str]) -> str:
    return f"no broker answers at {' and at '.join(missing)}"
