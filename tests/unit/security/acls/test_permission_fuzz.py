"""A few seconds of what `python -m fuzz.permissions` does for longer."""

from __future__ import annotations

import random

from fuzz.permissions import all_targets, run
from millrace.core.errors import MillraceError


def test_no_damaged_permission_or_filter_does_worse_than_be_refused() -> None:
    tried, faults = run(seconds=2, seed=20261118)
    assert not faults, "\n".join(fault.describe() for fault in faults[:3])
    assert tried >= 11 * len(list(all_targets()))


def test_sound_requests_are_mostly_taken() -> None:
    # If all were refused at once, nothing behind the refusal would have been tried.
    chance = random.Random(1)
    for target in all_targets():
        taken = 0
        for _ in range(200):
            try:
                target.take(target.sound(chance))
            except MillraceError:
                continue
            taken += 1
        assert taken > 5, target.label
