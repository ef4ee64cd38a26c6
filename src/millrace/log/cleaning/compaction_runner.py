"""Where compactions are carried out: in the worker process, or in place for the simulator and tools."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from typing import Final, Protocol

from millrace.log.cleaning.compaction import CompactionJob, CompactionResult, compact
from millrace.log.cleaning.worker_messages import WorkerDied, WorkerNotStarted, decode_reply, encode_job
from millrace.log.disk.volume import Volume

logger: Final = logging.getLogger(__name__)

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A reply names each new segment in about 200 bytes."""
_STOP_TIMEOUT_S: Final = 5.0


class CompactionRunner(Protocol):
    """Does compaction jobs, one at a time."""

    starts_count: int
    """How often something had to be started for the jobs."""

    async def run(self, job: CompactionJob) -> CompactionResult:
        """Do the job; JobFailed or a MillraceError if it could not be done, WorkerDied if it was cut off,
        WorkerNotStarted if it could not be begun."""

    async def rest(self) -> None:
        """Give memory back, because there is nothing to do for a while."""


class InlineRunner:
    """Does the job where it is called, in one go: deterministic, and it stalls the loop."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.starts_count = 0

    async def run(self, job: CompactionJob) -> CompactionResult:
        return compact(self._volume, job)

    async def rest(self) -> None:
        return


class WorkerRunner:
    """Has one process do all jobs, one at a time; starts it with the first one and again after it died."""

    def __init__(self) -> None:
        self.starts_count = 0
        self._process: Process | None = None
        self._lock = asyncio.Lock()

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self, job: CompactionJob) -> CompactionResult:
        async with self._lock:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(encode_job(job))
                await process.stdin.drain()
                line = await process.stdout.readline()
            except (BrokenPipeError, ConnectionResetError):
                line = b""
            except BaseException:
                # Cancelled in the middle of a job: the next one must not read this one's reply.
                await self._stop()
                raise
            if not line.endswith(b"\n"):
                await self._stop()
                raise WorkerDied(f"the worker process ended with code {process.returncode}")
            return decode_reply(line)

    async def rest(self) -> None:
        async with self._lock:
            await self._stop()

    async def _running(self) -> Process:
        process = self._process
        if process is None or process.returncode is not None:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "millrace.log.cleaning.worker",
                    stdin=PIPE,
                    stdout=PIPE,
                    limit=REPLY_BYTES_MAX,
                )
            except OSError as error:
                raise WorkerNotStarted(f"no worker process: {error.strerror or error}") from error
            self._process = process
            self.starts_count += 1
            logger.info("the worker process %d has started", process.pid)
        return process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
