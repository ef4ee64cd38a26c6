"""Named steps at which an example can be made to die, as by `kill -9`: nothing is flushed or closed."""

from __future__ import annotations

import os
import signal

_DIE_AT = os.environ.get("EXAMPLE_DIE_AT")
_left = int(os.environ.get("EXAMPLE_DIE_AFTER", "0"))


def step(name: str) -> None:
    """Die here if the environment names this step."""
    global _left  # noqa: PLW0603 - one counter for one process
    if name != _DIE_AT:
        return
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _left -= 1
