"""A local cluster that lives as long as the command that started it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from millrace.cli.cluster.local_cluster import LocalCluster
from millrace.cli.output import log_line

LOOK_INTERVAL_S: Final = 0.3


def stay(
    directory: Path, *, start: Callable[[], None], ready: Callable[[], None], stop: Callable[[], None]
) -> None:
    """Start the cluster and stay until a signal, or until `millrace cluster down` has stopped it.

    A signal during the start counts when all has started, or has failed to. The processes have sessions of
    their own, so that a Ctrl-C reaches only this command."""
    wanted = threading.Event()
    with _signals(wanted):
        try:
            start()
            ready()
            # Read anew each time: `cluster up` elsewhere may have started a killed broker again.
            while not wanted.wait(LOOK_INTERVAL_S) and LocalCluster.load(directory).is_running:
                pass
        finally:
            if LocalCluster.state_file(directory).exists() and LocalCluster.load(directory).is_running:
                log_line("stopping the brokers, then etcd")
                stop()
    log_line("the cluster is down")


@contextmanager
def _signals(wanted: threading.Event) -> Iterator[None]:
    """The first signal asks for the end; another Ctrl-C does not wait for it, and leaves what still runs."""

    def note(number: int, _frame: object) -> None:
        if wanted.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        wanted.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
