"""The worker process: carries out one compaction at a time, at low priority, and ends with its parent.

Started as `python -m millrace.log.cleaning.worker`. Jobs come in on stdin, replies leave on stdout. The
parent sends one job at a time, so that anything on stdin during a job, its end above all, means: stop.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Final

from millrace.log.cleaning.compaction import CompactionJob, compact
from millrace.log.cleaning.worker_messages import decode_job, encode_failure, encode_result
from millrace.log.disk.volume import DiskVolume

NICENESS: Final = 10
_CHECK_EVERY_BYTES: Final = 1 << 20
_PAUSE_MIN_S: Final = 0.01


class Pacer:
    """Keeps the job under its bytes per second and looks for the parent's end now and then.

    Real time and sleeping are this process's business: it is no part of the broker's event loop.
    """

    def __init__(self, bytes_per_second: float, input_number: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._input_number = input_number
        self._started = time.monotonic()  # noqa: TID251 - outside the event loop and the simulator
        self._done = 0
        self._unchecked = 0

    def __call__(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._unchecked += size_bytes
        ahead = self._done / self._bytes_per_second - self._elapsed() if self._is_throttled() else 0.0
        if self._unchecked >= _CHECK_EVERY_BYTES or ahead > _PAUSE_MIN_S:
            self._unchecked = 0
            # It sleeps by waiting for input from the parent, which may end meanwhile.
            readable, _, _ = select.select([self._input_number], [], [], max(ahead, 0.0))
            if readable:
                raise SystemExit(0)

    def _is_throttled(self) -> bool:
        return self._bytes_per_second < float(1 << 50)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started  # noqa: TID251 - outside the event loop and the simulator


def run_job(line: bytes, input_number: int) -> bytes:
    """The reply to one job."""
    try:
        job: CompactionJob = decode_job(line)
        pacer = Pacer(job.io_bytes_per_second, input_number)
        return encode_result(compact(DiskVolume(open_files_max=16), job, pacer))
    except Exception as error:  # noqa: BLE001 - the edge of a job: the parent logs it and counts it
        return encode_failure(error)


def main() -> None:
    # The terminal's interrupt reaches the whole group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    input_number, output_number = sys.stdin.fileno(), sys.stdout.fileno()
    with os.fdopen(os.dup(input_number), "rb", buffering=1 << 16) as jobs:
        while line := jobs.readline():
            if not line.endswith(b"\n"):
                return
            reply = memoryview(run_job(line, input_number))
            while reply:
                reply = reply[os.write(output_number, reply) :]


if __name__ == "__main__":
    main()
