"""A few seconds of what `python -m fuzz.decoders` does for longer: no bytes may do worse than be refused."""

from __future__ import annotations

import random

from fuzz.decoders import find_fault, run
from fuzz.frames import all_targets, dense_frames, valid_frame


def test_no_damaged_frame_raises_anything_but_a_refusal() -> None:
    tried, faults = run(seconds=1.5, seed=20261115)
    assert not faults, "\n".join(fault.describe() for fault in faults[:3])
    assert tried > 1_000


def test_memory_stays_a_small_multiple_of_what_was_received() -> None:
    rng = random.Random(7)
    targets = [target for target in all_targets() if "request" in target.label]
    for target in rng.sample(targets, 12):
        for frame in dense_frames(valid_frame(target, rng), rng, 60_000):
            fault = find_fault(target, frame, watch_memory=True)
            assert fault is None, fault.describe()
