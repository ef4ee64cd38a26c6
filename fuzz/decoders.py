"""Throws damaged frames at every decoder: `python -m fuzz.decoders --seconds 60 [--seed N] [--only TEXT]`.

What must hold (S2, S22 of the faults page): a decoder returns or raises MalformedRequest, in little time, and
takes no more memory than a small multiple of what it was given.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Final, NamedTuple

from fuzz.command_line import fuzz
from fuzz.frames import Target, all_targets, damaged, dense_frames, valid_frame
from millrace.wire.errors import MalformedRequest
from millrace.wire.schema_runtime import OBJECTS_BYTES_FREE, OBJECTS_PER_BYTE_MAX

SECONDS_FREE: Final = 0.25
"""A busy machine may stop us for this long; a decoder that loops takes far longer."""
SECONDS_PER_MEGABYTE: Final = 4.0
MEMORY_SLACK: Final = 1.5
"""Decoders count rough sizes of objects, and Python grows lists beyond their length."""
DENSE_FRAME_BYTES: Final = 256 * 1024


class Fault(NamedTuple):
    """A frame that a decoder did not bear, and how."""

    target: str
    problem: str
    frame: bytes

    def describe(self) -> str:
        shown = self.frame[:200].hex() + ("..." if len(self.frame) > 200 else "")
        return f"{self.target}: {self.problem}\n  frame of {len(self.frame)} bytes: {shown}"


def find_fault(target: Target, frame: bytes, *, watch_memory: bool = False) -> Fault | None:
    """Decode one frame and say what went wrong, if anything did."""
    if watch_memory:
        tracemalloc.start()
    # Of this thread: what else the machine does meanwhile is not the decoder's fault.
    started = time.thread_time()
    try:
        target.decode(frame)
    except MalformedRequest:
        pass
    except BaseException as error:  # noqa: BLE001 - finding these is the purpose
        return Fault(target.label, f"{type(error).__name__}: {error}", frame)
    finally:
        took = time.thread_time() - started
        peak = tracemalloc.get_traced_memory()[1] if watch_memory else 0
        if watch_memory:
            tracemalloc.stop()
    if not watch_memory and took > SECONDS_FREE + SECONDS_PER_MEGABYTE * len(frame) / 1e6:
        return Fault(target.label, f"took {took:.2f} s", frame)
    if peak > MEMORY_SLACK * (OBJECTS_PER_BYTE_MAX * len(frame) + OBJECTS_BYTES_FREE):
        return Fault(target.label, f"took {peak} bytes of memory", frame)
    return None


def frames_for(target: Target, chance: random.Random) -> Iterator[bytes]:
    """One valid frame, and frames that are not."""
    frame = valid_frame(target, chance)
    yield frame
    for _ in range(8):
        yield damaged(frame, chance)
    yield chance.randbytes(chance.randrange(200))
    yield frame[: chance.randrange(len(frame) + 1)]


def run(seconds: float, seed: int, only: str = "") -> tuple[int, list[Fault]]:
    """Fuzz all decoders in turn until the time is up; return how many frames were tried, and the faults."""
    chance = random.Random(seed)
    targets = [target for target in all_targets() if only.lower() in target.label.lower()]
    chance.shuffle(targets)
    deadline = time.monotonic() + seconds
    tried = 0
    faults: list[Fault] = []
    while targets and time.monotonic() < deadline:
        for target in targets:
            for frame in frames_for(target, chance):
                tried += 1
                if fault := find_fault(target, frame):
                    faults.append(fault)
            if chance.random() < 0.004:
                for frame in dense_frames(valid_frame(target, chance), chance, DENSE_FRAME_BYTES):
                    tried += 1
                    if fault := find_fault(target, frame, watch_memory=True):
                        faults.append(fault)
            if time.monotonic() > deadline or len(faults) > 20:
                return tried, faults
    return tried, faults


def main() -> int:
    return fuzz(run, about=__doc__, what="the decoders", unit="frames", example="Metadata request v9")


if __name__ == "__main__":
    sys.exit(main())
